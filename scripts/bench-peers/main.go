// Command bench-peers measures lukv, llama.cpp and ik_llama.cpp in turns on the same
// machine, and writes the ratios of their speeds as Markdown to standard output and,
// with -json FILE, together with every single figure to a file.
//
//	LUKV_BENCH_LLAMA=…/llama-bench LUKV_BENCH_IK=…/llama-bench \
//	    go run . -lukv ../../bin/lukv 150m=150m-bf16.gguf llama-3.2-1b=1b-bf16.gguf
//
// The peers are built outside of this repository; those whose variable is empty are
// left out. Each argument is a checkpoint folder, or a shape of "lukv bench --shape"
// (random weights in bf16), and a GGUF file of the same shape and type for the peers;
// speed does not depend on the values of weights. In every round each engine measures
// each point once, all points of one depth in one process, since peers must first
// compute the entries before them; the order of engines changes from round to round, so
// that other load on the machine affects all of them alike. A ratio is the median over
// rounds of lukv's speed over the peer's in the same round. lukv probes the machine's
// memory before and after its turn; the spread of these probes shows how quiet the
// machine was.
//
// With -serve 1,8,32 servers are compared instead: lukv serve with the llama-server that
// LUKV_BENCH_LLAMA_SERVER names, with the given numbers of concurrent streams over HTTP
// on the loopback interface. The models are then folders, such as those that "lukv convert
// FILE.gguf FOLDER" makes. A speed is that of all answers together, including prefill.
//
// The file of -json is written after every turn, and measurements in it are not
// again: a run that was interrupted, or ended by -for, resumes where it stopped.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"
)

// point is one measurement: a prompt or an answer of the given number of tokens, after
// depth entries in the cache; for servers both, in the given number of streams.
type point struct {
	Prompt  int `json:"prompt,omitempty"`
	Answer  int `json:"answer,omitempty"`
	Depth   int `json:"depth"`
	Streams int `json:"streams,omitempty"`
}

func (p point) String() string {
	if p.Streams > 0 {
		return fmt.Sprintf("%d streams, %d tokens to a prompt of %d", p.Streams, p.Answer, p.Prompt)
	}
	if p.Prompt > 0 {
		return fmt.Sprintf("prompt of %d, depth %d", p.Prompt, p.Depth)
	}
	return fmt.Sprintf("answer of %d, depth %d", p.Answer, p.Depth)
}

// engine measures the points of a task once.
type engine struct {
	name string
	run  func(t task) (map[point]figure, error)
	// lacks reports whether the engine's program cannot measure a point; nil: it can measure all.
	lacks func(point) bool
}

// task is one turn of an engine.
type task struct {
	model, gguf string
	depth       int
	prompts     []int
	answers     []int
	streams     []int // for servers
	threads     int
}

func (t task) points() []point {
	var out []point
	for _, n := range t.streams {
		out = append(out, point{Prompt: t.prompts[0], Answer: t.answers[0], Streams: n})
	}
	if len(out) > 0 {
		return out
	}
	for _, n := range t.prompts {
		out = append(out, point{Prompt: n, Depth: t.depth})
	}
	for _, n := range t.answers {
		out = append(out, point{Answer: n, Depth: t.depth})
	}
	return out
}

type figure struct {
	Speed float64   `json:"tokens_per_second"`
	Probe []float64 `json:"read_probes,omitempty"` // bytes/s
}

// cell is one point of one model.
type cell struct {
	Model  string              `json:"model"`
	Point  point               `json:"point"`
	Rounds []map[string]figure `json:"rounds"`            // by engine
	Ratios map[string]ratio    `json:"lukv_over"`         // by peer
	Median map[string]float64  `json:"tokens_per_second"` // by engine
	Probe  span                `json:"read_probe"`
}

type ratio struct{ Median, Low, High float64 }

type span struct{ Low, High float64 }

type results struct {
	Threads int             `json:"threads"`
	Machine json.RawMessage `json:"machine"` // as in lukv bench --json
	Cells   []*cell         `json:"cells"`
}

// cell returns the cell of a point, a new one if there is none, with at least the given
// number of rounds.
func (r *results) cell(model string, p point, rounds int) *cell {
	for _, c := range r.Cells {
		if c.Model == model && c.Point == p {
			c.more(rounds)
			return c
		}
	}
	c := &cell{Model: model, Point: p}
	c.more(rounds)
	r.Cells = append(r.Cells, c)
	return c
}

func (c *cell) more(rounds int) {
	for len(c.Rounds) < rounds {
		c.Rounds = append(c.Rounds, map[string]figure{})
	}
}

// points returns the points of a task that the engine can measure.
func (e engine) points(t task) []point {
	points := t.points()
	if e.lacks != nil {
		points = slices.DeleteFunc(points, e.lacks)
	}
	return points
}

// has reports whether an engine has measured its points of a task in a round.
func (r *results) has(t task, round int, e engine) bool {
	for _, p := range e.points(t) {
		if _, ok := r.cell(t.model, p, round+1).Rounds[round][e.name]; !ok {
			return false
		}
	}
	return true
}

var machine json.RawMessage

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "bench-peers:", err)
		os.Exit(1)
	}
}

func run() error {
	lukv := flag.String("lukv", "lukv", "the command")
	rounds := flag.Int("rounds", 3, "rounds")
	threads := flag.Int("threads", 2, "threads")
	prompts := flag.String("pp", "512", "tokens of prompts")
	answers := flag.String("tg", "32", "tokens of answers")
	depths := flag.String("depth", "0,8192", "entries in the cache before")
	serve := flag.String("serve", "", "compare servers at so many concurrent streams, with the first of -pp and -tg")
	out := flag.String("json", "", "file for all figures; measurements in it are not repeated")
	limit := flag.Duration("for", 0, "begin no turn after this time; 0: no limit")
	flag.Parse()
	var engines []engine
	add := func(name, path string, run func(path string) func(task) (map[point]figure, error), lacks func(point) bool) {
		if path != "" {
			engines = append(engines, engine{name, run(path), lacks})
		}
	}
	if *serve != "" {
		*depths = "0"
		add("lukv", *lukv, serveLukv, nil)
		add("llama.cpp", os.Getenv("LUKV_BENCH_LLAMA_SERVER"), serveLlama, nil)
	} else {
		add("lukv", *lukv, bench, nil)
		add("llama.cpp", os.Getenv("LUKV_BENCH_LLAMA"), llamaBench, nil)
		add("ik_llama.cpp", os.Getenv("LUKV_BENCH_IK"), ikBench, promptBehind)
	}
	if len(engines) == 1 || flag.NArg() == 0 {
		return errors.New("nothing to compare: set LUKV_BENCH_LLAMA or LUKV_BENCH_IK to a llama-bench, with -serve LUKV_BENCH_LLAMA_SERVER to a llama-server, and give SHAPE=FILE.gguf or FOLDER=FILE.gguf")
	}
	var tasks []task
	for _, arg := range flag.Args() {
		model, gguf, ok := strings.Cut(arg, "=")
		if !ok {
			return fmt.Errorf("%s: found no =, expected SHAPE=FILE.gguf or FOLDER=FILE.gguf", arg)
		}
		for _, d := range numbers(*depths) {
			tasks = append(tasks, task{model, gguf, d, numbers(*prompts), numbers(*answers), numbers(*serve), *threads})
		}
	}
	res, err := read(*out, *threads)
	if err != nil {
		return err
	}
	begin := time.Now()
	turn := func(t task, round int, e engine) (bool, error) {
		if res.has(t, round, e) {
			return true, nil
		}
		if *limit > 0 && time.Since(begin) > *limit {
			return false, nil
		}
		fmt.Fprintf(os.Stderr, "%s, depth %d: round %d of %d: %s\n", t.model, t.depth, round+1, *rounds, e.name)
		figures, err := e.run(t)
		for _, p := range e.points(t) {
			if err == nil && figures[p].Speed <= 0 {
				err = fmt.Errorf("found no figure for the %v", p)
			}
		}
		if err != nil {
			return false, fmt.Errorf("%s, %s, depth %d: %w", e.name, t.model, t.depth, err)
		}
		for p, f := range figures {
			res.cell(t.model, p, *rounds).Rounds[round][e.name] = f
		}
		return true, res.save(*out)
	}
	complete := true
	for _, t := range tasks {
		for i := range *rounds {
			for k := range engines {
				done, err := turn(t, i, engines[(i+k)%len(engines)])
				if err != nil {
					return err
				}
				complete = complete && done
			}
		}
	}
	res.write(engines)
	if !complete {
		return errors.New("the time limit ended the run early; with -json, the same command continues it")
	}
	return nil
}

// read returns the results in a file, empty ones if there is none.
func read(path string, threads int) (*results, error) {
	res := &results{Threads: threads}
	data, err := os.ReadFile(path)
	if path == "" || errors.Is(err, fs.ErrNotExist) {
		return res, nil
	}
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(data, res); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if res.Threads != threads {
		return nil, fmt.Errorf("%s: found results of %d threads, expected %d", path, res.Threads, threads)
	}
	machine = res.Machine
	return res, nil
}

// save updates the summaries and writes the results atomically to a file, if path is
// not empty.
func (r *results) save(path string) error {
	for _, c := range r.Cells {
		c.summarize()
	}
	r.Machine = machine
	if path == "" {
		return nil
	}
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(path+".part", append(data, '\n'), 0o666); err != nil {
		return err
	}
	return os.Rename(path+".part", path)
}

func numbers(list string) []int {
	var out []int
	for _, s := range strings.Split(list, ",") {
		if n, err := strconv.Atoi(strings.TrimSpace(s)); err == nil {
			out = append(out, n)
		}
	}
	return out
}

// output runs a command and reads the JSON that it prints.
func output(v any, name string, args ...string) error {
	cmd := exec.Command(name, args...)
	var failed strings.Builder
	cmd.Stderr = &failed
	data, err := cmd.Output()
	if err != nil {
		text := failed.String()
		return fmt.Errorf("%s: %w: %s", cmd, err, text[max(0, len(text)-500):])
	}
	if err := json.Unmarshal(data, v); err != nil {
		return fmt.Errorf("%s: %w", cmd, err)
	}
	return nil
}

func list(numbers []int) string {
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(numbers), " ", ","), "[]")
}

// bench measures with lukv bench.
func bench(path string) func(task) (map[point]figure, error) {
	return func(t task) (map[point]figure, error) {
		args := []string{"bench", "--json", "--reps", "1", "--threads", strconv.Itoa(t.threads), "--depth", strconv.Itoa(t.depth)}
		if info, err := os.Stat(t.model); err == nil && info.IsDir() {
			args = append(args, t.model)
		} else {
			args = append(args, "--shape", t.model)
		}
		if len(t.prompts) > 0 {
			args = append(args, "--pp", list(t.prompts))
		}
		if len(t.answers) > 0 {
			args = append(args, "--tg", list(t.answers))
		}
		var r struct {
			Machine json.RawMessage
			Points  []struct {
				Test    string
				Tokens  int
				Speed   float64 `json:"tokens_per_second"`
				Samples []struct {
					Before float64 `json:"read_before"`
					After  float64 `json:"read_after"`
				}
			}
		}
		if err := output(&r, path, args...); err != nil {
			return nil, err
		}
		machine = r.Machine
		out := map[point]figure{}
		for _, x := range r.Points {
			p := point{Depth: t.depth}
			if x.Test == "prefill" {
				p.Prompt = x.Tokens
			} else {
				p.Answer = x.Tokens
			}
			f := figure{Speed: x.Speed}
			for _, s := range x.Samples {
				if s.Before > 0 {
					f.Probe = append(f.Probe, s.Before, s.After)
				}
			}
			out[p] = f
		}
		return out, nil
	}
}

// llamaBench measures with llama.cpp's llama-bench.
func llamaBench(path string) func(task) (map[point]figure, error) {
	return func(t task) (map[point]figure, error) {
		out := map[point]figure{}
		return out, t.peer(out, path, "-p", orZero(t.prompts), "-n", orZero(t.answers), "-d", strconv.Itoa(t.depth))
	}
}

// ikBench measures with ik_llama.cpp's llama-bench, which has no depth option but can
// measure answers after a prompt.
func ikBench(path string) func(task) (map[point]figure, error) {
	return func(t task) (map[point]figure, error) {
		out := map[point]figure{}
		if t.depth == 0 {
			return out, t.peer(out, path, "-p", orZero(t.prompts), "-n", orZero(t.answers))
		}
		args := []string{"-p", "0", "-n", "0"}
		for _, n := range t.answers {
			args = append(args, "-gp", fmt.Sprintf("%d,%d", t.depth, n))
		}
		return out, t.peer(out, path, args...)
	}
}

// promptBehind reports whether a point is a prompt at a depth, which ik_llama.cpp's
// llama-bench cannot measure.
func promptBehind(p point) bool { return p.Prompt > 0 && p.Depth > 0 }

// orZero lists numbers of tokens, or returns "0", which means none to llama-bench.
func orZero(tokens []int) string {
	if len(tokens) == 0 {
		return "0"
	}
	return list(tokens)
}

// peer runs a llama-bench with the common arguments and args.
func (t task) peer(out map[point]figure, path string, args ...string) error {
	var r []struct {
		Prompt int     `json:"n_prompt"`
		Answer int     `json:"n_gen"`
		Speed  float64 `json:"avg_ts"`
	}
	if err := output(&r, path, append([]string{"-m", t.gguf, "-o", "json", "-r", "1", "-fa", "1", "-t", strconv.Itoa(t.threads)}, args...)...); err != nil {
		return err
	}
	for _, x := range r {
		p := point{Prompt: x.Prompt, Answer: x.Answer, Depth: t.depth}
		if p.Answer > 0 {
			p.Prompt = 0 // it only provides the depth
		}
		out[p] = figure{Speed: x.Speed}
	}
	return nil
}

func median(x []float64) float64 {
	x = slices.Sorted(slices.Values(x))
	n := len(x)
	return (x[(n-1)/2] + x[n/2]) / 2
}

func (c *cell) summarize() {
	c.Ratios, c.Median = map[string]ratio{}, map[string]float64{}
	speeds, ratios := map[string][]float64{}, map[string][]float64{}
	var probes []float64
	for _, r := range c.Rounds {
		for name, f := range r {
			speeds[name] = append(speeds[name], f.Speed)
			probes = append(probes, f.Probe...)
			if own, ok := r["lukv"]; ok && name != "lukv" {
				ratios[name] = append(ratios[name], own.Speed/f.Speed)
			}
		}
	}
	for name, x := range speeds {
		c.Median[name] = median(x)
	}
	for name, x := range ratios {
		c.Ratios[name] = ratio{median(x), slices.Min(x), slices.Max(x)}
	}
	if len(probes) > 0 {
		c.Probe = span{slices.Min(probes), slices.Max(probes)}
	}
}

// write prints the table.
func (r *results) write(engines []engine) {
	var m struct {
		CPU           string
		Family, Model int
		L1Bytes       int64 `json:"l1_bytes"`
		L2Bytes       int64 `json:"l2_bytes"`
		L3Bytes       int64 `json:"l3_bytes"`
		Processors    int
	}
	if len(r.Cells) == 0 {
		return
	}
	if json.Unmarshal(r.Machine, &m) == nil && m.CPU != "" {
		fmt.Printf("%s (family %d model %d; L1 %d KiB, L2 %d KiB, L3 %d MiB), %d processors, %d threads, %d rounds.\n\n",
			m.CPU, m.Family, m.Model, m.L1Bytes>>10, m.L2Bytes>>10, m.L3Bytes>>20, m.Processors, r.Threads, len(r.Cells[0].Rounds))
	}
	fmt.Print("| model | what |")
	for _, e := range engines {
		fmt.Printf(" %s, tokens/s |", e.name)
	}
	for _, e := range engines[1:] {
		fmt.Printf(" lukv / %s | lowest – highest |", e.name)
	}
	fmt.Print(" read probe, GB/s |\n|---|---|", strings.Repeat("---:|", len(engines)+2*(len(engines)-1)+1), "\n")
	for _, c := range r.Cells {
		if len(c.Median) == 0 {
			continue
		}
		fmt.Printf("| %s | %v |", c.Model, c.Point)
		for _, e := range engines {
			if speed := c.Median[e.name]; speed > 0 {
				fmt.Printf(" %.3g |", speed)
			} else {
				fmt.Print(" – |")
			}
		}
		for _, e := range engines[1:] {
			if x := c.Ratios[e.name]; x.Median > 0 {
				fmt.Printf(" %.2f | %.2f – %.2f |", x.Median, x.Low, x.High)
			} else {
				fmt.Print(" – | – |")
			}
		}
		if c.Probe.High > 0 {
			fmt.Printf(" %.1f – %.1f |\n", c.Probe.Low/1e9, c.Probe.High/1e9)
		} else {
			fmt.Print(" |\n")
		}
	}
}
