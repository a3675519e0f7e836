//go:build (linux || darwin || windows) && (amd64 || arm64)

package vulkan

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/lukv/lukv/internal/vk"
	"github.com/lukv/lukv/tensor"
)

// The tests fail if the validation layer reports something. Here it must report
// errors: only then does its silence elsewhere mean anything.
func TestValidationReports(t *testing.T) {
	if lib, err := vk.Load(); err == nil && !lib.HasValidation() && !gpuAssisted() {
		t.Skip("the validation layer is not installed")
	}
	for _, c := range []struct {
		name     string
		assisted bool // found by checks of addresses
		want     string
		record   func(c *commands, b *buffer)
	}{
		{"copies without order", false, "WRITE_AFTER_WRITE", func(c *commands, b *buffer) {
			c.Concurrent(func() {
				c.Copy(b.At(0, 64), b.At(64, 64))
				c.Copy(b.At(0, 64), b.At(128, 64))
			})
		}},
		{"reading past a buffer", true, "Out of bounds", func(c *commands, b *buffer) {
			c.ArgMax(newRows2D(b.At(0, 32), tensor.F32, 1, 1), newRows2D(view{b, 256, 2048}, tensor.F32, 1, 512))
		}},
		{"writing past a buffer", true, "Out of bounds", func(c *commands, b *buffer) {
			c.ArgMax(newRows2D(view{b, 1024, 32}, tensor.F32, 1, 1), newRows2D(b.At(0, 256), tensor.F32, 1, 64))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.assisted && !gpuAssisted() {
				t.Skip("LUKV_VULKAN_GPU_ASSISTED is not set")
			}
			// Now and then the memory after the buffer belongs to another buffer, and the
			// layer reports nothing: try again with a buffer elsewhere.
			all := ""
			for range 10 {
				if all = reported(t, c.record); strings.Contains(all, c.want) {
					return
				}
			}
			t.Errorf("the layer reported %q, expected %q", all, c.want)
		})
	}
}

// reported returns what the layer says about commands on a buffer of 512 bytes.
func reported(t *testing.T, record func(c *commands, b *buffer)) string {
	var mu sync.Mutex
	var list []string
	d := openTest(t, Options{Validation: func(m string) {
		mu.Lock()
		defer mu.Unlock()
		list = append(list, m)
	}})
	// After the 512 bytes there is memory, but usually no buffer.
	b, err := d.newLocalBuffer(512)
	ok(t, err)
	ok(t, d.upload(context.Background(), b.All(), make([]byte, 512)))
	run(t, d, func(cmd *commands) { record(cmd, b) })
	ok(t, d.Close())
	mu.Lock()
	defer mu.Unlock()
	return strings.Join(list, "\n")
}
