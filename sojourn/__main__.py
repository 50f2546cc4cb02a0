from sojourn.cli import main

main()
