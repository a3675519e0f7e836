//go:build !purego

package gguf

import "golang.org/x/sys/cpu"

var assembly = cpu.X86.HasAVX2

//go:noescape
func sumTrials(t *trials)

//go:noescape
func measureTrials(t *trials)
