"""One file per step of the story; the numbers live in ptq, runtimes and measure."""
