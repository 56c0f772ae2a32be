"""The scripts that make the committed reports, and the tables that pages show of them."""
