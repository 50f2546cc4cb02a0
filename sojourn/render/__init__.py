"""Chat formats: the only code that knows them. Each class is a config; `bind(tokenizer, template)` gives a renderer."""
