"""Reports: HTML pages with pictures, and the verdict table as Markdown, as artifact rows and for the terminal."""
