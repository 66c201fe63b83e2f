"""Gates: rules, intervals, and the approval that promotion takes."""
