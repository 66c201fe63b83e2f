"""The report: one page, one picture, and the verdict table as markdown, as artifact rows and for the terminal."""
