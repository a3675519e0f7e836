// Command bench-peers measures lukv beside llama.cpp and ik_llama.cpp, in turns on the
// same machine, and writes the ratios of their speeds as Markdown on standard output
// and, with -json FILE, with every single figure.
//
//	LUKV_BENCH_LLAMA=…/llama-bench LUKV_BENCH_IK=…/llama-bench \
//	    go run . -lukv ../../bin/lukv 150m=150m-bf16.gguf llama-3.2-1b=1b-bf16.gguf
//
// The peers are built outside of this repository; those whose variable is empty are
// left out. Each argument is a shape of "lukv bench --shape" (random weights in bf16)
// and a GGUF file of the same shape and type for the peers; speed does not depend on
// the values of weights. In every round each engine measures each point once, in an
// order that changes from round to round, so that what else the machine does meets
// all of them alike; a ratio is the median over rounds of lukv's speed over the
// peer's in the same round. lukv probes the machine's memory before and after its
// turn; the spread of these probes says how quiet the machine was.
package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
)

// point is what is measured: a prompt of so many tokens, or so many tokens of an answer,
// behind depth entries in the cache.
type point struct {
	Prompt int `json:"prompt,omitempty"`
	Answer int `json:"answer,omitempty"`
	Depth  int `json:"depth"`
}

func (p point) String() string {
	if p.Prompt > 0 {
		return fmt.Sprintf("prompt of %d, depth %d", p.Prompt, p.Depth)
	}
	return fmt.Sprintf("answer of %d, depth %d", p.Answer, p.Depth)
}

type engine struct {
	name string
	run  func(shape, gguf string, p point, threads int) (figure, error)
}

type figure struct {
	Speed float64   `json:"tokens_per_second"`
	Probe []float64 `json:"read_probes,omitempty"` // bytes/s
}

// cell is one point of one shape.
type cell struct {
	Shape  string                      `json:"shape"`
	Point  point                       `json:"point"`
	Rounds []map[string]figure         `json:"rounds"`            // by engine
	Ratios map[string]ratio            `json:"lukv_over"`         // by peer
	Median map[string]float64          `json:"tokens_per_second"` // by engine
	Probe  struct{ Low, High float64 } `json:"read_probe"`
}

type ratio struct{ Median, Low, High float64 }

type results struct {
	Threads int             `json:"threads"`
	Machine json.RawMessage `json:"machine"` // as in lukv bench --json
	Cells   []*cell         `json:"cells"`
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
	rounds := flag.Int("rounds", 5, "rounds")
	threads := flag.Int("threads", 2, "threads")
	prompts := flag.String("pp", "512", "tokens of prompts")
	answers := flag.String("tg", "32", "tokens of answers")
	depths := flag.String("depth", "0,8192", "entries in the cache before")
	out := flag.String("json", "", "file for all figures")
	flag.Parse()
	engines := []engine{{"lukv", bench(*lukv)}}
	for name, variable := range map[string]string{"llama.cpp": "LUKV_BENCH_LLAMA", "ik_llama.cpp": "LUKV_BENCH_IK"} {
		if path := os.Getenv(variable); path != "" {
			engines = append(engines, engine{name, peer(path)})
		}
	}
	slices.SortFunc(engines[1:], func(a, b engine) int { return cmp.Compare(b.name, a.name) })
	if len(engines) == 1 || flag.NArg() == 0 {
		return errors.New("nothing to compare: set LUKV_BENCH_LLAMA or LUKV_BENCH_IK to a llama-bench, and give SHAPE=FILE.gguf")
	}
	var points []point
	for _, d := range numbers(*depths) {
		for _, n := range numbers(*prompts) {
			points = append(points, point{Prompt: n, Depth: d})
		}
		for _, n := range numbers(*answers) {
			points = append(points, point{Answer: n, Depth: d})
		}
	}
	res := &results{Threads: *threads}
	for _, arg := range flag.Args() {
		shape, gguf, ok := strings.Cut(arg, "=")
		if !ok {
			return fmt.Errorf("%s: found no =, expected SHAPE=FILE.gguf", arg)
		}
		for _, p := range points {
			c := &cell{Shape: shape, Point: p}
			for i := range *rounds {
				fmt.Fprintf(os.Stderr, "%s, %v: round %d of %d\n", shape, p, i+1, *rounds)
				round := map[string]figure{}
				for k := range engines {
					e := engines[(i+k)%len(engines)]
					f, err := e.run(shape, gguf, p, *threads)
					if err != nil {
						return fmt.Errorf("%s, %s, %v: %w", e.name, shape, p, err)
					}
					round[e.name] = f
				}
				c.Rounds = append(c.Rounds, round)
			}
			c.summarize()
			res.Cells = append(res.Cells, c)
		}
	}
	res.Machine = machine
	res.write(engines)
	if *out == "" {
		return nil
	}
	data, err := json.MarshalIndent(res, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(*out, append(data, '\n'), 0o666)
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

// bench measures with lukv bench.
func bench(path string) func(shape, gguf string, p point, threads int) (figure, error) {
	return func(shape, _ string, p point, threads int) (f figure, err error) {
		args := []string{"bench", "--json", "--reps", "1", "--shape", shape, "--threads", strconv.Itoa(threads), "--depth", strconv.Itoa(p.Depth)}
		if p.Prompt > 0 {
			args = append(args, "--pp", strconv.Itoa(p.Prompt))
		} else {
			args = append(args, "--tg", strconv.Itoa(p.Answer))
		}
		var r struct {
			Machine json.RawMessage
			Points  []struct {
				Speed   float64 `json:"tokens_per_second"`
				Samples []struct {
					Before float64 `json:"read_before"`
					After  float64 `json:"read_after"`
				}
			}
		}
		if err := output(&r, path, args...); err != nil {
			return f, err
		}
		if len(r.Points) != 1 {
			return f, fmt.Errorf("found %d points, expected one", len(r.Points))
		}
		machine = r.Machine
		f.Speed = r.Points[0].Speed
		for _, s := range r.Points[0].Samples {
			if s.Before > 0 {
				f.Probe = append(f.Probe, s.Before, s.After)
			}
		}
		return f, nil
	}
}

// peer measures with llama-bench.
func peer(path string) func(shape, gguf string, p point, threads int) (figure, error) {
	return func(_, gguf string, p point, threads int) (f figure, err error) {
		var r []struct {
			Speed float64 `json:"avg_ts"`
		}
		err = output(&r, path, "-m", gguf, "-o", "json", "-r", "1", "-fa", "1", "-t", strconv.Itoa(threads),
			"-p", strconv.Itoa(p.Prompt), "-n", strconv.Itoa(p.Answer), "-d", strconv.Itoa(p.Depth))
		if err == nil && len(r) != 1 {
			err = fmt.Errorf("found %d results, expected one", len(r))
		}
		if err != nil {
			return f, err
		}
		f.Speed = r[0].Speed
		return f, nil
	}
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
			if name != "lukv" {
				ratios[name] = append(ratios[name], r["lukv"].Speed/f.Speed)
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
		c.Probe.Low, c.Probe.High = slices.Min(probes), slices.Max(probes)
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
	if json.Unmarshal(r.Machine, &m) == nil {
		fmt.Printf("%s (family %d model %d; L1 %d KiB, L2 %d KiB, L3 %d MiB), %d processors, %d threads, %d rounds.\n\n",
			m.CPU, m.Family, m.Model, m.L1Bytes>>10, m.L2Bytes>>10, m.L3Bytes>>20, m.Processors, r.Threads, len(r.Cells[0].Rounds))
	}
	fmt.Print("| shape | what |")
	for _, e := range engines {
		fmt.Printf(" %s, tokens/s |", e.name)
	}
	for _, e := range engines[1:] {
		fmt.Printf(" lukv / %s | lowest – highest |", e.name)
	}
	fmt.Print(" read probe, GB/s |\n|---|---|", strings.Repeat("---:|", len(engines)+2*(len(engines)-1)+1), "\n")
	for _, c := range r.Cells {
		fmt.Printf("| %s | %v |", c.Shape, c.Point)
		for _, e := range engines {
			fmt.Printf(" %.3g |", c.Median[e.name])
		}
		for _, e := range engines[1:] {
			x := c.Ratios[e.name]
			fmt.Printf(" %.2f | %.2f – %.2f |", x.Median, x.Low, x.High)
		}
		fmt.Printf(" %.1f – %.1f |\n", c.Probe.Low/1e9, c.Probe.High/1e9)
	}
}
