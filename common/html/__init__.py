"""Pages without a script, nothing from outside: axes, charts on them, the page around them."""
