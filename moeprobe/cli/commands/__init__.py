"""The commands, one file each: it parses, calls the library once, prints the result and names the files."""
