"""A Flower project: three parties tell large digits from small ones; one of them says it the other way round."""
