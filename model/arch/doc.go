// Package arch reads the configuration of a checkpoint into data: the sizes of the network,
// what each of its layers computes ([LayerPlan]), how its tensors are named and shaped, and
// how its positions rotate ([Rope]). A model family is a file family_*.go, with its keys,
// defaults and tensor names in the conventions of Hugging Face and GGUF side by side; the
// forward pass in package model knows plans, not families.
package arch
