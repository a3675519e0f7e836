package command

import (
	"bufio"
	"fmt"

	"github.com/lukv/lukv/hub"
	"github.com/lukv/lukv/internal/report"
)

type listCmd struct {
	JSON bool `help:"Print one JSON object."`
}

func (listCmd) Help() string {
	return `Print a line for each model in the hub's cache, which other programs share: its name, its size with all revisions, and when it was last written.

Examples:

  lukv list

  lukv list --json`
}

func (c *listCmd) Run(e *env) error {
	client, err := hub.New()
	if err != nil {
		return err
	}
	models, err := client.List(e.ctx)
	if err != nil {
		return err
	}
	if c.JSON {
		return e.writeJSON("lukv list 1", map[string]any{"models": append([]hub.Cached{}, models...)})
	}
	if len(models) == 0 {
		e.note("no models in %s; lukv pull NAME fetches one", client.CacheDir)
	}
	w := bufio.NewWriter(e.out)
	for _, m := range models {
		fmt.Fprintf(w, "%s\t%s\t%s\n", m.Name, report.Bytes(m.Bytes), m.Modified.Format("2006-01-02"))
	}
	return w.Flush()
}

type rmCmd struct {
	Names []string `arg:"" name:"name" help:"Names of models, as lukv list prints them."`
}

func (rmCmd) Help() string {
	return `Remove models with all of their revisions from the hub's cache, for every program that uses it. A model that is being pulled is left alone.

Examples:

  lukv rm Qwen/Qwen2.5-0.5B-Instruct`
}

func (c *rmCmd) Run(e *env) error {
	var refs []hub.Ref
	for _, name := range c.Names { // nothing is removed if one is wrong
		ref, err := hub.ParseRef(name)
		if err != nil {
			return usageError{err}
		}
		refs = append(refs, ref)
	}
	client, err := hub.New()
	if err != nil {
		return err
	}
	for _, ref := range refs {
		x, err := client.Remove(e.ctx, ref)
		if err != nil {
			return err
		}
		e.note("%s removed: %s", x.Name, report.Bytes(x.Bytes))
	}
	return nil
}
