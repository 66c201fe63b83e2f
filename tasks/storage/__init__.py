"""Where files and finished work are kept, and what keeps two processes from one thing; knows no flow and no registry."""
