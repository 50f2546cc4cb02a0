"""One file for each page: a function from the request to what the page's template shows."""
