"""The front-end `vision`: images as sequences of vectors, and classes as answers."""
