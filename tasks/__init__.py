"""Steps of a run in rooms, from what all share (`run`) to the watch over champions; imports nothing of `flows`."""
