// Package builtin carries a small trained model inside the program: Needle-Llama,
// a Llama of 4.1 million parameters that retrieves facts from contexts of up to
// 2048 tokens. It is what the command runs when no checkpoint is at hand, and
// a test article for cache compression; README.md is its model card, and the
// repository's folder training/ its recipe.
//
// The package adds about 9 MB to a program that imports it and has no other effect.
package builtin
