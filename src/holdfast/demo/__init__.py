"""`holdfast demo`: a film in seven stages, its workers, a pretend provider, and the screen that shows them."""
