"""What every step of one run shares: settings, context, clock, progress, redaction.

Every room of the steps may import it.
"""
