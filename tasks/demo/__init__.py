"""The demo: two real models and real data, built on the spot from packages that anyone can fetch."""
