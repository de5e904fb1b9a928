"""What a model is trained for: which labels there are, the loss, the metric, and how answers are averaged."""
