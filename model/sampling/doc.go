// Package sampling draws tokens from logits: penalties, masks, temperature, truncation and
// the draw itself, with log-probabilities of what was drawn. It knows no model and no session.
// A draw is a function of options, history and logits alone, on every processor.
package sampling
