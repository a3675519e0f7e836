package bench

import (
	"runtime/debug"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/lukv/lukv/internal/probe"
)

func TestAnonymousPages(t *testing.T) {
	assert.EqualValues(t, 1200-34, anonymousPages([]byte("56789 1200 34 5 0 6 0\n")))
	assert.Zero(t, anonymousPages(nil))
}

// Memory that is held for a while is seen.
func TestWatchPrivate(t *testing.T) {
	debug.FreeOSMemory() // so that earlier tests' garbage does not leave meanwhile
	stop := watchPrivate(func() int64 { return 0 })
	before := privateMemory()
	b, err := probe.NewBuffer(32 << 20)
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(30 * time.Millisecond)
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	assert.Greater(t, stop(), before+24<<20)

	stop = watchPrivate(func() int64 { return 1 << 40 })
	assert.Negative(t, stop())
}
