//go:build !unix

package testfuzz

import "time"

var begin = time.Now()

// processorTime is the time by the clock where the system has no other.
func processorTime() time.Duration { return time.Since(begin) }
