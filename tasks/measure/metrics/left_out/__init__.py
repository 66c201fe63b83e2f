"""Values of a metric without each group of its rows, all groups at once; the jackknife needs hundreds of them."""
