// Command mutate measures whether tests notice faults: it plants one small fault
// at a time in a package and runs the package's tests. A fault that no test
// notices is a survivor: a test is missing, or the fault changes nothing visible
// and belongs, with the reason, in the list of equivalents.
//
//	cd scripts/mutate && go run . -n 200 -seed 1 ../../hub ../../safetensors
//
// Faults come from a seeded sample that depends on the text of each line, not on
// its number, so that the sample stays the same when the surrounding code moves.
// The working tree is not touched, and must not change meanwhile: faulty files
// replace others through go's -overlay. All faults of a package are built into one
// program, which plants the one that its environment names, and a fault is tried
// only by the tests that run its position.
//
// While tests are being written, -run and -match try new ones against the survivors
// that they are meant to catch:
//
//	go run . -run 'TestPull' -match 'pull.go' ../../hub
//
// The exit status is 1 if anything survived that is not listed, 2 if an error occurs,
// such as tests that fail without a fault.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"time"
)

func main() {
	n := flag.Int("n", 200, "faults per package; 0: all")
	seed := flag.Uint64("seed", 1, "start of the sample")
	tests := flag.String("tests", "", "more packages whose tests may notice, separated by commas")
	run := flag.String("run", "", "only top-level tests whose names match")
	skip := flag.String("skip", "", "not the top-level tests whose names match")
	slow := flag.Duration("slow", 2*time.Second, "leave out tests that compute for longer")
	match := flag.String("match", "", "of the sample, only faults whose line as printed matches")
	list := flag.String("equivalent", "equivalent.txt", "the reviewed list of faults that change nothing")
	verbose := flag.Bool("v", false, "print every fault")
	flag.Parse()
	o := options{slow: *slow, verbose: *verbose}
	if *tests != "" {
		o.tests = strings.Split(*tests, ",")
	}
	var err error
	for _, p := range []struct {
		to   **regexp.Regexp
		text string
	}{{&o.run, *run}, {&o.skip, *skip}, {&o.match, *match}} {
		if p.text == "" {
			continue
		}
		if *p.to, err = regexp.Compile(p.text); err != nil {
			fail(err)
		}
	}
	if o.known, err = readEquivalents(*list); err != nil {
		fail(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	survived := 0
	for _, dir := range flag.Args() {
		count, err := measure(ctx, dir, o, *n, *seed)
		if err != nil {
			fail(err)
		}
		survived += count
		if ctx.Err() != nil {
			break
		}
	}
	if survived > 0 {
		os.Exit(1)
	}
}

// measure tries a package's sample, prints the score, and returns how many faults
// survived.
func measure(ctx context.Context, dir string, o options, n int, seed uint64) (int, error) {
	begun := time.Now()
	r := &runner{options: o, dir: dir}
	defer r.close()
	if err := r.load(ctx); err != nil {
		return 0, err
	}
	faults, err := r.faults()
	if err != nil {
		return 0, err
	}
	total := len(faults)
	faults = sample(faults, n, seed)
	if o.match != nil {
		faults = slices.DeleteFunc(faults, func(f *fault) bool { return !o.match.MatchString(r.folder + ": " + f.key) })
	}
	if err := r.prepare(ctx, faults); err != nil {
		return 0, err
	}
	for _, f := range faults {
		if ctx.Err() != nil {
			fmt.Println("interrupted; what follows is the count so far")
			break
		}
		if err := r.try(ctx, f); err != nil {
			return 0, err
		}
	}
	survived := 0
	for _, f := range faults {
		if f.outcome == survivor || f.outcome == uncovered {
			survived++
		}
	}
	fmt.Printf("%s: %s of %d faults in %v\n", r.folder, score(faults), total, time.Since(begun).Round(time.Second))
	return survived, nil
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "mutate:", err)
	os.Exit(2)
}

// score summarizes outcomes. Faults that do not compile do not count as tried.
func score(faults []*fault) string {
	count := map[outcome]int{}
	for _, f := range faults {
		count[f.outcome]++
	}
	tried := count[killed] + count[equivalent] + count[survivor] + count[uncovered]
	noticed := 0.0
	if tried > 0 {
		noticed = 100 * float64(count[killed]+count[equivalent]) / float64(tried)
	}
	return fmt.Sprintf("%.1f %% noticed or equivalent: %d killed, %d equivalent, %d survived, %d not covered; %d do not compile; sample",
		noticed, count[killed], count[equivalent], count[survivor], count[uncovered], count[broken])
}
