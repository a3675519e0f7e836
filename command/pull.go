package command

import (
	"fmt"
	"time"

	"github.com/lukv/lukv/hub"
	"github.com/lukv/lukv/internal/report"
)

type pullCmd struct {
	Name     string   `arg:"" placeholder:"OWNER/NAME" help:"Model on the hub: OWNER/NAME, with @REVISION and, for a GGUF file, :TAG."`
	Include  []string `sep:"none" placeholder:"PATTERN" help:"Download matching files instead of those that lukv needs, such as '*.json' or 'original/'. May be repeated."`
	Exclude  []string `sep:"none" placeholder:"PATTERN" help:"Skip matching files. May be repeated."`
	Parallel int      `default:"4" placeholder:"N" help:"Download N files at once (default ${default})."`
	Verify   bool     `help:"Compare cached files with their hashes, and fetch damaged files again."`
	JSON     bool     `help:"Print one JSON object with folder, commit and files instead of the folder's name."`
}

func (pullCmd) Help() string {
	return `Downloads config, tokenizer, chat template and safetensors weights into the cache that the Python tools use, and prints the folder. What is already there is not downloaded again; an interrupted download is continued. Every file is checked against the hash that the hub lists. Afterwards, use the name wherever a command takes a MODEL.

OWNER/NAME:TAG downloads one GGUF file, such as Q4_K_M, and prints its path; in a repository that has GGUF files only, the tag may be left out. Tags and cache are those of llama.cpp's -hf, so either program opens what the other has downloaded.

HF_HOME and HF_HUB_CACHE say where the cache is, HF_ENDPOINT which hub is asked, HF_TOKEN is the access token, HF_HUB_OFFLINE forbids the network. LLAMA_CACHE, if set, is the cache of GGUF files.

Examples:

  lukv pull Qwen/Qwen2.5-0.5B-Instruct

  lukv pull Qwen/Qwen2.5-0.5B-Instruct --verify

  lukv pull mistralai/Mistral-7B-Instruct-v0.3@main --exclude tokenizer.model

  lukv pull Qwen/Qwen2.5-0.5B-Instruct-GGUF:Q8_0

  lukv chat Qwen/Qwen2.5-0.5B-Instruct`
}

func (c *pullCmd) Run(e *env) error {
	ref, err := hub.ParseRef(c.Name)
	if err != nil {
		return usageError{err}
	}
	if c.Parallel < 1 {
		return usage("--parallel: found %d, expected 1 or more", c.Parallel)
	}
	client, err := hub.New()
	if err != nil {
		return err
	}
	client.UserAgent = "lukv/" + readVersion().Version
	p := e.longProgress()
	defer p.clear()
	got, err := client.Pull(e.ctx, ref, hub.PullOptions{
		Include: c.Include, Exclude: c.Exclude, Parallel: c.Parallel, Verify: c.Verify, Progress: p.transfer(),
	})
	p.clear()
	if err != nil {
		return err
	}
	if c.JSON {
		return e.writeJSON("lukv pull 1", got)
	}
	if client.Offline {
		e.note("%s is in the cache; the hub was not asked (HF_HUB_OFFLINE)", ref)
	} else {
		e.note("%s: %s, %s, of this %s fetched", ref, report.Count(len(got.Files), "file"), report.Bytes(got.Size), report.Bytes(got.Fetched))
	}
	for _, f := range got.Files {
		if f.Damaged {
			e.note("%s did not have its hash and was fetched again", f.Name)
		}
	}
	_, err = fmt.Fprintln(e.out, got.Model)
	return err
}

// transfer returns the progress callback of a pull.
func (p *progress) transfer() func(hub.Progress) {
	if p == nil {
		return nil
	}
	var begun time.Time
	return func(s hub.Progress) {
		if s.Waiting != "" {
			p.show("waiting: %s", s.Waiting)
			return
		}
		if begun.IsZero() {
			begun = time.Now()
		}
		rate := float64(s.Fetched) / max(0.1, time.Since(begun).Seconds())
		left := ""
		if rate > 0 && time.Since(begun) > time.Second {
			left = fmt.Sprintf(", %s/s, %v left", report.Bytes(int64(rate)),
				time.Duration(float64(s.Size-s.Bytes)/rate*float64(time.Second)).Round(time.Second))
		}
		p.show("%d of %d files, %s of %s%s: %s", s.Done, s.Files, report.Bytes(s.Bytes), report.Bytes(s.Size), left, s.File)
	}
}
