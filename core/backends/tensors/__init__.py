"""The tensors of a batch: inputs gathered from its requests, results split among them."""
