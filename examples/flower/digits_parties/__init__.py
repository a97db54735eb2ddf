"""A Flower project: three parties with handwritten digits, of which one calls them differently."""
