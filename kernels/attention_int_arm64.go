//go:build !purego

package kernels

// hasInts reports whether c has kernels for integer keys and values: without them attention
// over integers is portable, and none of the following is called.
func (c CPU) hasInts() bool { return false }

func (t *queryRows) growInts()                    {}
func (t *queryRows) takeInts(r int, q []float32)  {}
func (t *queryRows) intScores(base, from, to int) {}
func (t *queryRows) intValues(base, from, to int) {}
