package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"

	"github.com/lukv/lukv/internal/bench"
	"github.com/lukv/lukv/model"
)

// Busy keeps one processor busy until in ends. It writes a line to out when it
// begins.
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

// Contention is the speed of decoding with and without processes that compete for
// processors, in tokens per second of all sessions together. Each repetition decodes
// alone, alone on one thread, and against the processes, in direct succession.
type Contention struct {
	Model   string `json:"model"`
	Threads int    `json:"threads"`
	Batch   int    `json:"batch"`
	Depth   int    `json:"depth"`
	Busy    int    `json:"busy"` // processes

	Quiet          float64 `json:"quiet_tokens_per_second"` // medians
	QuietOne       float64 `json:"quiet_one_thread_tokens_per_second"`
	Speed          float64 `json:"tokens_per_second"`
	VersusQuiet    float64 `json:"versus_quiet"` // medians of the ratios of Speed to the others
	VersusQuietOne float64 `json:"versus_quiet_one_thread"`
}

// contend measures decoding against busy processes.
func (s *settings) contend(ctx context.Context, name string) (any, error) {
	if len(s.command) == 0 {
		return nil, errors.New("measure decoding against busy processes: found no command that starts one")
	}
	source, _, err := s.source(name)
	if err != nil {
		return nil, err
	}
	defer source.Release()
	var models [2]*model.Model
	for i, opts := range [][]model.Option{s.options(), append(s.options(), model.WithThreads(1))} {
		if models[i], err = source.Open(ctx, opts...); err != nil {
			return nil, err
		}
		defer models[i].Close()
	}
	c := Contention{Model: name, Threads: models[0].Threads(), Batch: s.batch, Depth: s.depth, Busy: s.busy}
	var quiet, one, speed, versus, versusOne []float64
	for i := range s.reps {
		s.progress(fmt.Sprintf("repetition %d of %d", i+1, s.reps))
		q, err := s.speed(ctx, models[0])
		if err != nil {
			return nil, err
		}
		o, err := s.speed(ctx, models[1])
		if err != nil {
			return nil, err
		}
		b, err := startRivals(ctx, s.command, s.busy)
		if err != nil {
			return nil, err
		}
		x, err := s.speed(ctx, models[0])
		b.stop()
		if err != nil {
			return nil, err
		}
		quiet, one, speed = append(quiet, q), append(one, o), append(speed, x)
		versus, versusOne = append(versus, x/q), append(versusOne, x/o)
	}
	c.Quiet, c.QuietOne, c.Speed = bench.Median(quiet), bench.Median(one), bench.Median(speed)
	c.VersusQuiet, c.VersusQuietOne = bench.Median(versus), bench.Median(versusOne)
	return c, nil
}

// speed returns the tokens per second of decoding with new sessions, after one step that
// does not count.
func (s *settings) speed(ctx context.Context, m *model.Model) (float64, error) {
	sessions, err := s.sessions(m)
	if err != nil {
		return 0, err
	}
	defer closeAll(sessions)
	if _, err := decode(ctx, m, sessions, 1); err != nil {
		return 0, err
	}
	took, err := decode(ctx, m, sessions, s.tokens)
	return float64(s.tokens*s.batch) / took.Seconds(), err
}
