// Command mutate measures whether tests notice faults: it plants one small fault
// at a time in a package and runs the package's tests. A fault that no test
// notices is a survivor: a test is missing, or the fault changes nothing that can
// be seen and belongs, with the reason, into the list of equivalents.
//
//	cd scripts/mutate && go run . -n 200 -seed 1 ../../hub ../../safetensors
//
// Faults come from a seeded sample that depends on the text of each line and not
// on its number, so that the sample stays the same while code around it moves. The
// working tree is not touched: faulty files are laid over it by go's -overlay.
//
// The exit status is 1 if anything survived that is not listed, 2 if a package's
// tests fail as they are.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"time"
)

func main() {
	n := flag.Int("n", 200, "faults per package; 0: all")
	seed := flag.Uint64("seed", 1, "start of the sample")
	tests := flag.String("tests", "", "more packages whose tests may notice, separated by commas")
	run := flag.String("run", "", "only tests that match, as in go test")
	skip := flag.String("skip", "", "not the tests that match, as in go test")
	list := flag.String("equivalent", "equivalent.txt", "the reviewed list of faults that change nothing")
	verbose := flag.Bool("v", false, "print every fault")
	flag.Parse()
	known, err := readEquivalents(*list)
	if err != nil {
		fail(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	survived := 0
	for _, dir := range flag.Args() {
		r := &runner{dir: dir, run: *run, skip: *skip, verbose: *verbose, known: known}
		if *tests != "" {
			r.tests = strings.Split(*tests, ",")
		}
		if err := r.prepare(ctx); err != nil {
			fail(err)
		}
		faults, err := r.faults()
		if err != nil {
			fail(err)
		}
		begun := time.Now()
		total := len(faults)
		faults = sample(faults, *n, *seed)
		for _, f := range faults {
			if ctx.Err() != nil {
				fmt.Println("interrupted; what follows is the count so far")
				break
			}
			if err := r.try(ctx, f); err != nil {
				fail(err)
			}
		}
		for _, f := range faults {
			if f.outcome == survivor || f.outcome == uncovered {
				survived++
			}
		}
		fmt.Printf("%s: %s of %d faults in %v\n", filepath.Base(dir), score(faults), total, time.Since(begun).Round(time.Second))
		if ctx.Err() != nil {
			break
		}
	}
	if survived > 0 {
		os.Exit(1)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "mutate:", err)
	os.Exit(2)
}

// score counts outcomes. Faults that do not compile are no faults.
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
