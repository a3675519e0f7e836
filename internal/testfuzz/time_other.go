//go:build !unix

package testfuzz

import "time"

var begin = time.Now()

// processorTime returns wall-clock time, since the system has no other.
func processorTime() time.Duration { return time.Since(begin) }
