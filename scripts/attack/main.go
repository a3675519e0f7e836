// Command attack runs "lukv serve" with little memory, sends it every kind of request
// that has once stopped a server, all at the same time, and watches what other clients see.
//
//	go build -o ../../bin/lukv ../../cmd/lukv && go run . -lukv ../../bin/lukv -for 5m
//
// The default model answers faster than tokens can be told apart; the bound on their times means
// something from some hundred million parameters on (-model FILE).
//
// As root on Linux the server runs in a memory control group of -memory bytes; elsewhere
// only the largest resident size is compared with it. The server listens on loopback. One
// client sends ordinary requests throughout, another stores documents; both use keys of
// their own, and all attacks share a third. Exit status 1 says that one of these failed:
//
//   - the server answers /health within a second,
//   - the time between tokens of the ordinary client's streams, in the median over its
//     answers, is at most three times that without attacks,
//   - every document that was acknowledged is there at the end, and answers,
//   - the server ends only when it is told to, and its memory is back a little later: at
//     most a quarter of -memory above its size before.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

func main() {
	program := flag.String("lukv", "lukv", "run this program")
	model := flag.String("model", "builtin", "serve this model")
	length := flag.Duration("for", 5*time.Minute, "attack for this time")
	memory := flag.Int64("memory", 4<<30, "limit the server to this many bytes")
	only := flag.String("only", "", "leave out all attacks but these, separated by commas")
	target := flag.String("send", "", "only send attacks, to the server at this address (which this command does itself)")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if *target != "" {
		send(ctx, *target, *length, *only)
		return
	}
	if err := run(ctx, *program, *model, *length, *memory, *only); err != nil {
		fmt.Fprintln(os.Stderr, "attack:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, program, model string, length time.Duration, memory int64, only string) error {
	dir, err := os.MkdirTemp("", "attack")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	s, err := start(ctx, program, model, dir, memory)
	if err != nil {
		return err
	}
	defer s.end()

	alone := &stream{server: s}
	alone.watch(ctx, 10*time.Second)
	before := s.resident()
	fmt.Printf("alone: %d answers, median gap %v; %d MiB resident\n", alone.answers, median(alone.gaps), before>>20)

	attacked, cancel := context.WithTimeout(ctx, length)
	defer cancel()
	under, kept, health := &stream{server: s}, &documents{server: s}, &health{server: s}
	var wg sync.WaitGroup
	wg.Go(func() { under.watch(attacked, length) })
	wg.Go(func() { kept.watch(attacked) })
	wg.Go(func() { health.watch(attacked) })
	attackers, err := sender(s.base, length, only)
	if err != nil {
		return err
	}
	wg.Go(func() { attackers.Run() })
	wg.Wait()

	var failed []string
	check := func(ok bool, format string, args ...any) {
		text := fmt.Sprintf(format, args...)
		fmt.Println(text)
		if !ok {
			failed = append(failed, text)
		}
	}
	check(s.alive(), "server alive: %v", s.alive())
	check(health.slowest < time.Second && health.failed == 0, "health: %d answers, slowest %v, %d failed", health.answers, health.slowest.Round(time.Millisecond), health.failed)
	check(len(under.gaps) > 0 && median(under.gaps) <= 3*median(alone.gaps), "ordinary streams: %d answers, median gap %v (alone %v), between single tokens %v (alone %v), longest %v, first token after at most %v, %d refused", under.answers, median(under.gaps), median(alone.gaps), median(under.each), median(alone.each), under.longest.Round(time.Millisecond), under.waited.Round(time.Millisecond), under.refused)
	check(s.peak() <= memory, "largest resident size: %d MiB of %d", s.peak()>>20, memory>>20)
	time.Sleep(10 * time.Second)
	after := s.resident()
	check(after <= before+memory/4, "resident afterwards: %d MiB", after>>20)
	lost := kept.lost(ctx)
	check(lost == 0, "documents: %d acknowledged, %d deleted, %d lost", kept.stored, kept.deleted, lost)
	if len(failed) > 0 {
		return errors.New("failed: " + strings.Join(failed, "; "))
	}
	return nil
}

// sender is this program as the process that attacks: of low priority, since clients elsewhere
// would not take the server's processors.
func sender(base string, length time.Duration, only string) (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command("nice", "-n", "19", self, "-send", base, "-for", length.String(), "-only", only)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	return cmd, nil
}

// send attacks a server for some time, and prints how it answered.
func send(ctx context.Context, base string, length time.Duration, only string) {
	ctx, cancel := context.WithTimeout(ctx, length)
	defer cancel()
	var wg sync.WaitGroup
	counts := attack(ctx, &server{base: base}, &wg, only)
	wg.Wait()
	for _, name := range counts.names() {
		fmt.Printf("%-12s %s\n", name, counts.of(name))
	}
}

// server is the process under attack.
type server struct {
	cmd  *exec.Cmd
	base string
	done chan struct{}
	log  string
}

// The keys of the clients.
const (
	ordinaryKey = "key-of-the-ordinary-client"
	documentKey = "key-of-the-client-with-documents"
	attackKey   = "key-of-the-attacks"
)

func start(ctx context.Context, program, model, dir string, memory int64) (*server, error) {
	keys, log := filepath.Join(dir, "keys"), filepath.Join(dir, "log")
	if err := os.WriteFile(keys, []byte(ordinaryKey+"\n"+documentKey+"\n"+attackKey+"\n"), 0o600); err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	address := l.Addr().String()
	l.Close()
	args := []string{"serve", "m=" + model, "--listen", address, "--key-file", keys, "--store", filepath.Join(dir, "store"), "--max-running", "32"}
	command := exec.Command(program, args...)
	if group, err := limit(memory); err == nil {
		command = exec.Command("sh", append([]string{"-c", `echo $$ > "$0/cgroup.procs" && exec "$@"`, group, program}, args...)...)
		fmt.Printf("memory control group of %d MiB\n", memory>>20)
	} else {
		fmt.Println("no memory control group:", err)
	}
	out, err := os.Create(log)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	command.Stdout, command.Stderr = out, out
	if err := command.Start(); err != nil {
		return nil, err
	}
	s := &server{cmd: command, base: "http://" + address, done: make(chan struct{}), log: log}
	go func() { command.Wait(); close(s.done) }()
	for range 300 {
		if r, err := http.Get(s.base + "/health"); err == nil {
			r.Body.Close()
			return s, nil
		}
		select {
		case <-s.done:
			text, _ := os.ReadFile(log)
			return nil, fmt.Errorf("the server ended: %s", text)
		case <-ctx.Done():
			s.end()
			return nil, ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
	s.end()
	return nil, errors.New("the server does not answer")
}

// limit makes a memory control group, of either version, and returns its folder.
func limit(memory int64) (string, error) {
	for _, g := range []struct{ root, file string }{{"/sys/fs/cgroup/memory", "memory.limit_in_bytes"}, {"/sys/fs/cgroup", "memory.max"}} {
		dir := filepath.Join(g.root, fmt.Sprintf("lukv-attack-%d", os.Getpid()))
		if _, err := os.Stat(filepath.Join(g.root, "cgroup.procs")); err != nil {
			continue
		}
		if err := os.Mkdir(dir, 0o755); err != nil {
			return "", err
		}
		return dir, os.WriteFile(filepath.Join(dir, g.file), []byte(strconv.FormatInt(memory, 10)), 0o644)
	}
	return "", errors.New("none found")
}

func (s *server) alive() bool {
	select {
	case <-s.done:
		return false
	default:
		return true
	}
}

// end tells the server to end, and waits.
func (s *server) end() {
	s.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-s.done:
	case <-time.After(40 * time.Second):
		s.cmd.Process.Kill()
		<-s.done
	}
	for _, root := range []string{"/sys/fs/cgroup/memory", "/sys/fs/cgroup"} {
		os.Remove(filepath.Join(root, fmt.Sprintf("lukv-attack-%d", os.Getpid())))
	}
}

func (s *server) resident() int64 { return s.status("VmRSS:") }
func (s *server) peak() int64     { return s.status("VmHWM:") }

// status returns a size of /proc/PID/status in bytes, 0 if unknown.
func (s *server) status(field string) int64 {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, field); ok {
			n, _ := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			return n << 10
		}
	}
	return 0
}

func median(x []time.Duration) time.Duration {
	if len(x) == 0 {
		return 0
	}
	x = slices.Sorted(slices.Values(x))
	return x[len(x)/2]
}
