package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"time"

	"github.com/lukv/lukv/model"
)

// Busy keeps one processor busy until in ends. It writes a line to out when it
// begins. A program's hidden command calls it to serve as Options.BusyCommand.
func Busy(in io.Reader, out io.Writer) error {
	ended := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, in)
		ended <- err
	}()
	if _, err := fmt.Fprintln(out, "busy"); err != nil {
		return err
	}
	for x := uint64(1); ; {
		select {
		case err := <-ended:
			return err
		default:
		}
		for range 1 << 16 {
			x ^= x << 13
			x ^= x >> 7
			x ^= x << 17
		}
		if x == 0 { // never, but the compiler must not know
			return errors.New("busy: a generator of period 2^64-1 reached zero")
		}
	}
}

// rivals are processes that keep processors busy.
type rivals struct{ list []rival }

type rival struct {
	cmd *exec.Cmd
	in  io.Closer // the process ends when this closes, so that none outlives the program
}

// startRivals starts n processes and returns once all of them are busy.
func startRivals(ctx context.Context, command []string, n int) (*rivals, error) {
	b := &rivals{}
	var outs []io.Reader
	for range n {
		cmd := exec.CommandContext(ctx, command[0], command[1:]...)
		in, err := cmd.StdinPipe()
		if err != nil {
			b.stop()
			return nil, err
		}
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			b.stop()
			return nil, fmt.Errorf("start a busy process: %w", err)
		}
		b.list = append(b.list, rival{cmd, in})
		outs = append(outs, out)
	}
	for _, out := range outs {
		if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "busy\n" {
			b.stop()
			return nil, fmt.Errorf("start a busy process %q: found %q on its output, expected \"busy\"", command, line)
		}
	}
	return b, nil
}

// stop ends the processes and waits for them.
func (b *rivals) stop() {
	for _, r := range b.list {
		r.in.Close()
		_ = r.cmd.Process.Kill() // it may have ended by itself
	}
	for _, r := range b.list {
		_ = r.cmd.Wait() // killed
	}
	b.list = nil
}

// pairs reports whether the point is also compared with one thread.
func (c *course) pairs() bool { return c.key.Busy > 0 && c.key.Threads > 1 }

// single returns the same point on one thread.
func (c *course) single(ctx context.Context) (*course, error) {
	m, err := c.s.open(ctx, c.r.options(model.WithPrecision(c.m.Precision()), model.WithCPU(c.m.CPU()), model.WithThreads(1))...)
	if err != nil {
		return nil, err
	}
	one := *c
	one.m, one.bases, one.point = m, nil, &Point{}
	one.key.Threads = 1
	if err := one.prepare(ctx); err != nil {
		return nil, errors.Join(err, one.close())
	}
	return &one, nil
}

// close closes a course that single returned.
func (c *course) close() error {
	closeAll(c.bases)
	return c.m.Close()
}

// contend measures decoding three times in a row: alone, alone on one thread, and
// against busy processes. It returns the time of the last.
func (c *course) contend(ctx context.Context, sessions []*model.Session, sample *Sample, ready func()) (time.Duration, error) {
	took, err := c.decode(ctx, sessions, sample, ready)
	if err != nil {
		return 0, err
	}
	sample.Quiet = c.speed(took)
	sample.QuietOne = sample.Quiet
	if c.one != nil {
		if took, err = c.one.again(ctx, &Sample{}); err != nil {
			return 0, err
		}
		sample.QuietOne = c.speed(took)
	}
	b, err := startRivals(ctx, c.r.o.BusyCommand, c.key.Busy)
	if err != nil {
		return 0, err
	}
	defer b.stop()
	return c.again(ctx, sample)
}

// again decodes from the point's initial state.
func (c *course) again(ctx context.Context, sample *Sample) (time.Duration, error) {
	sessions, done, err := c.sessions()
	if err != nil {
		return 0, err
	}
	defer done()
	return c.decode(ctx, sessions, sample, func() {})
}

// speed returns the tokens per second of a repetition that took the given time.
func (c *course) speed(took time.Duration) float64 {
	return float64(c.key.Tokens) * float64(c.key.Batch) / took.Seconds()
}
