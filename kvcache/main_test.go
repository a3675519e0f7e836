package kvcache

import (
	"fmt"
	"os"
	"testing"

	"github.com/lukv/lukv/internal/arena"
)

// TestMain turns the checks on and requires that every page is freed at the end.
func TestMain(m *testing.M) {
	checking = func() bool { return true }
	code := m.Run()
	if live, mapped := arena.Live(), arena.Mapped(); code == 0 && (live != 0 || mapped != 0) {
		fmt.Printf("caches left open by tests: %d bytes in use, %d mapped\n", live, mapped)
		code = 1
	}
	os.Exit(code)
}
