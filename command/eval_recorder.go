package command

import (
	"slices"

	"github.com/lukv/lukv/eval"
)

// recorder has an evaluation go on from what a file holds, and keeps what it finds there.
type recorder[T eval.Outcome] struct {
	log    *eval.Log[T] // nil: outcomes are kept in memory only
	path   string       // what the user named: the file, or its folder
	verb   string       // for messages: "answered"
	nouns  string       // "answers"
	places []int        // of the questions that are asked, ascending
	item   func(*T) *int
}

// run returns the outcomes of all questions that are asked, whose items are their places
// then: those of the file, and those of evaluate. It closes the file.
func (k *recorder[T]) run(e *env, o eval.Options, evaluate func(eval.Options, func(T) error) error) ([]T, error) {
	all := []T{}
	if k.log != nil {
		defer k.log.Close()
		for _, v := range k.log.Outcomes() {
			if _, asked := slices.BinarySearch(k.places, *k.item(&v)); asked {
				all = append(all, v)
			}
		}
		if len(all) > 0 {
			e.note("resuming from %s: %d %s are there", k.path, len(all), k.nouns)
		}
		o.Done = func(i int, method string) bool { return k.log.Done(k.places[i], method) }
	}
	line, resumed := e.longProgress(), len(all)
	defer line.clear()
	o.Progress = func(done, total int) {
		e.log.Info(k.verb, "done", done, "of", total)
		line.show("%s: %d of %d %s%s", k.verb, done, total, k.nouns, line.left(resumed, done, total))
	}
	err := evaluate(o, func(v T) error {
		item := k.item(&v)
		*item = k.places[*item]
		all = append(all, v)
		if k.log != nil {
			return k.log.Add(v)
		}
		return nil
	})
	if err != nil && k.log != nil && e.ctx.Err() != nil {
		line.clear()
		e.note("the %s so far are in %s; the same command continues from it", k.nouns, k.path)
	}
	return all, err
}
