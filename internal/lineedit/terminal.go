package lineedit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"golang.org/x/term"
)

// ErrInterrupt is returned by ReadLine for Ctrl-C, and is the cause of contexts
// cancelled by Ctrl-C.
var ErrInterrupt = errors.New("interrupted")

// Device is one end of a terminal, such as os.Stdin.
type Device interface{ Fd() uintptr }

// Terminal is a terminal in raw mode.
type Terminal struct {
	History  History
	Complete Completer // for the Tab key; nil: it does nothing

	out   io.Writer
	fd    uintptr // of out
	drawn int     // rows of the line being edited
	size  func() (columns int)
	close func() error

	write sync.Mutex

	mu     sync.Mutex
	typed  []byte
	fail   error // of the input, after typed
	cancel context.CancelCauseFunc
	closed bool
	ready  chan struct{} // holds one signal: typed or fail has changed
}

// Open puts the terminal into raw mode. The caller closes it, which restores the
// previous mode.
func Open(in interface {
	io.Reader
	Device
}, out interface {
	io.Writer
	Device
}) (*Terminal, error) {
	old, err := term.MakeRaw(int(in.Fd()))
	if err != nil {
		return nil, fmt.Errorf("raw mode: %w", err)
	}
	t := newTerminal(in, out, func() int {
		w, _, err := term.GetSize(int(out.Fd()))
		if err != nil {
			return 0
		}
		return w
	})
	t.fd = out.Fd()
	t.close = func() error { return term.Restore(int(in.Fd()), old) }
	io.WriteString(out, "\x1b[?2004h") // pasted text comes in brackets
	return t, nil
}

// Columns returns the width of the terminal; 0 if it is unknown.
func (t *Terminal) Columns() int { return t.size() }

func newTerminal(in io.Reader, out io.Writer, size func() int) *Terminal {
	t := &Terminal{out: out, size: size, ready: make(chan struct{}, 1)}
	go t.listen(in)
	return t
}

// Close restores the terminal. Closing twice is fine.
func (t *Terminal) Close() error {
	t.mu.Lock()
	closed := t.closed
	t.closed = true
	t.mu.Unlock()
	if closed {
		return nil
	}
	io.WriteString(t.out, "\x1b[?2004l")
	if t.close != nil {
		return t.close()
	}
	return nil
}

// Fd returns the file descriptor of the output.
func (t *Terminal) Fd() uintptr { return t.fd }

// Write writes text with line breaks as the raw terminal needs them.
func (t *Terminal) Write(p []byte) (int, error) {
	t.write.Lock()
	defer t.write.Unlock()
	if _, err := t.out.Write(bytes.ReplaceAll(p, []byte("\n"), []byte("\r\n"))); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Interruptible returns a context that Ctrl-C cancels, with ErrInterrupt as the
// cause, until stop is called. What was typed before Ctrl-C is dropped with it.
func (t *Terminal) Interruptible(ctx context.Context) (busy context.Context, stop func()) {
	busy, cancel := context.WithCancelCause(ctx)
	t.mu.Lock()
	t.cancel = cancel
	t.mu.Unlock()
	return busy, func() {
		t.mu.Lock()
		t.cancel = nil
		t.mu.Unlock()
		cancel(nil)
	}
}

const ctrlC = 3

// listen collects input until it ends or the terminal is closed.
func (t *Terminal) listen(in io.Reader) {
	buf := make([]byte, 4096)
	for {
		n, err := in.Read(buf)
		t.mu.Lock()
		b := buf[:n]
		if i := bytes.LastIndexByte(b, ctrlC); i >= 0 && t.cancel != nil {
			t.cancel(ErrInterrupt)
			t.typed, b = nil, b[i+1:]
		}
		t.typed = append(t.typed, b...)
		t.fail = err
		end := err != nil || t.closed
		t.mu.Unlock()
		select {
		case t.ready <- struct{}{}:
		default:
		}
		if end {
			return
		}
	}
}

// next returns the next byte. Unless patient, it waits only briefly, for the rest of
// a sequence, and reports false if nothing comes.
func (t *Terminal) next(ctx context.Context, patient bool) (b byte, ok bool, err error) {
	var timeout <-chan time.Time
	if !patient {
		timeout = time.After(50 * time.Millisecond)
	}
	for {
		t.mu.Lock()
		if len(t.typed) > 0 {
			b, t.typed = t.typed[0], t.typed[1:]
			t.mu.Unlock()
			return b, true, nil
		}
		err := t.fail
		t.mu.Unlock()
		if err != nil {
			return 0, false, err
		}
		select {
		case <-t.ready:
		case <-timeout:
			return 0, false, nil
		case <-ctx.Done():
			return 0, false, context.Cause(ctx)
		}
	}
}
