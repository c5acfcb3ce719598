"""What writes the pages: numbers and tables from results, pictures, and hooks of mkdocs."""
