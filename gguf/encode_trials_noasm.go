//go:build !amd64 || purego

package gguf

var assembly = false

func sumTrials(*trials)     {}
func measureTrials(*trials) {}
