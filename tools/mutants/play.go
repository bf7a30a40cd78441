package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// player runs tests. Each package is built once, to read the scripts from the folder that scriptsEnv names: such a
// binary serves all mistakes in scripts, and shows that the tests pass without a mistake. A mistake in Go is compiled.
type player struct {
	root, tmp string
	overlay   string                  // lets the library read scripts from a folder
	builds    map[string]func() error // by package
	healthy   map[string]*health      // by package and test
}

// health is what is known of a test without a mistake.
type health struct {
	mu     sync.Mutex // held while it runs; guards the rest
	passed int        // runs
	err    error      // of a run that did not pass
}

// tries is how often a test may run until it notices the mistake: some draw random operations. It has to pass as often without
// the mistake.
const tries = 3

// patience is how long a run of a test may take.
var patience = 90 * time.Second

const scriptsEnv = "RLOCK_MUTANT_SCRIPTS"

// play runs the test of each mutant, and returns how many were not noticed. It trusts a test that fails only if the test
// passes without the mistake in as many runs.
func play(root string, all []mutant, jobs int) (wrong int, err error) {
	tmp, err := os.MkdirTemp("", "rlock-mutants-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(tmp)
	p, err := newPlayer(root, tmp, all)
	if err != nil {
		return 0, err
	}
	var (
		mu    sync.Mutex
		work  sync.WaitGroup
		slots = make(chan struct{}, jobs)
	)
	for _, m := range all {
		slots <- struct{}{}
		work.Go(func() {
			defer func() { <-slots }()
			began := time.Now()
			err := p.passes(m, 1)
			if err == nil {
				var runs int
				if runs, err = p.noticed(m); err == nil {
					err = p.passes(m, runs)
				}
			}
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				wrong++
				fmt.Printf("NOT NOTICED  line %d, %s: %v\n", m.line, m.file, err)
				return
			}
			fmt.Fprintf(os.Stderr, "noticed in %4.1fs  line %d, %s: %s\n", time.Since(began).Seconds(), m.line, m.file, m.test)
		})
	}
	work.Wait()
	return wrong, nil
}

func newPlayer(root, tmp string, all []mutant) (*player, error) {
	p := &player{root: root, tmp: tmp, builds: map[string]func() error{}, healthy: map[string]*health{}}
	if err := p.readScripts(); err != nil {
		return nil, err
	}
	for _, m := range all {
		if p.builds[m.pkg] == nil {
			p.builds[m.pkg] = sync.OnceValue(func() error { return p.build(m.pkg) })
		}
		p.healthy[m.pkg+m.test] = &health{}
	}
	return p, nil
}

// passes checks that the test of m passes without the mistake, that many times in all.
func (p *player) passes(m mutant, runs int) error {
	if err := p.builds[m.pkg](); err != nil {
		return err
	}
	h := p.healthy[m.pkg+m.test]
	h.mu.Lock()
	defer h.mu.Unlock()
	for ; h.err == nil && h.passed < runs; h.passed++ {
		if v, out := p.run(p.built(m, p.root), m); v != passes {
			h.err = fmt.Errorf("%s %s fails without a mistake, after %d runs that passed:\n%s", m.pkg, m.test, h.passed, out)
		}
	}
	return h.err
}

// readScripts makes the overlay in which the library reads a folder instead of the scripts that it embeds.
func (p *player) readScripts() error {
	options := filepath.Join(p.root, "options.go")
	text, err := os.ReadFile(options)
	if os.IsNotExist(err) {
		return nil // the tree of a test
	} else if err != nil {
		return err
	}
	changed := string(text)
	for _, embeds := range []string{"\t\"embed\"\n", "//go:embed scripts/*/*.lua\n", "var scriptFiles embed.FS\n"} {
		if strings.Count(changed, embeds) != 1 {
			return fmt.Errorf("options.go does not have %q", embeds)
		}
		changed = strings.Replace(changed, embeds, "", 1)
	}
	added := fmt.Sprintf("package rlock\n\nimport \"os\"\n\nvar scriptFiles = os.DirFS(os.Getenv(%q))\n", scriptsEnv)
	p.overlay, err = overlay(p.tmp, map[string]string{options: changed, filepath.Join(p.root, "scriptfiles.go"): added})
	return err
}

// overlay writes files for the compiler, by the paths that they have for it, and returns its flag.
func overlay(dir string, files map[string]string) (flag string, err error) {
	replace := map[string]string{}
	for path, text := range files {
		replace[path] = filepath.Join(dir, filepath.Base(path))
		if err := os.WriteFile(replace[path], []byte(text), 0o600); err != nil {
			return "", err
		}
	}
	list, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	name := filepath.Join(dir, "overlay.json")
	return "-overlay=" + name, os.WriteFile(name, list, 0o600)
}

// folder is where the test binary of a package is: the compiler names it, and some tests know its name.
func (p *player) folder(pkg string) string {
	return filepath.Join(p.tmp, strings.NewReplacer(".", "_", "/", "_").Replace(pkg))
}

func (p *player) build(pkg string) error {
	if err := os.Mkdir(p.folder(pkg), 0o700); err != nil {
		return err
	}
	args := []string{"test", "-c", "-vet=off", "-o", p.folder(pkg) + "/"}
	if p.overlay != "" {
		args = append(args, p.overlay)
	}
	cmd := exec.Command("go", append(args, pkg)...)
	cmd.Dir = p.root
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", pkg, err, out)
	}
	return nil
}

// built is the test of m as it was built, with the scripts of a folder.
func (p *player) built(m mutant, scripts string) *exec.Cmd {
	binary := "no test binary"
	if found, _ := filepath.Glob(filepath.Join(p.folder(m.pkg), "*.test")); len(found) == 1 {
		binary = found[0]
	}
	cmd := exec.Command(binary, "-test.timeout="+patience.String(), "-test.run", m.test)
	cmd.Dir = filepath.Join(p.root, m.pkg)
	if readsTree(m.pkg) {
		cmd.Dir = filepath.Join(scripts, m.pkg)
	}
	cmd.Env = append(os.Environ(), scriptsEnv+"="+scripts)
	return cmd
}

// readsTree reports whether the tests of a package do not embed the scripts, but read them from two folders above their own.
func readsTree(pkg string) bool { return pkg == "./internal/protocol" || pkg == "./internal/quorum" }

// mutated is the test of m with its mistake, for which dir is free.
func (p *player) mutated(m mutant, dir string) (*exec.Cmd, error) {
	if strings.HasSuffix(m.file, ".lua") {
		if err := os.CopyFS(filepath.Join(dir, "scripts"), os.DirFS(filepath.Join(p.root, "scripts"))); err != nil {
			return nil, err
		}
		if err := os.MkdirAll(filepath.Join(dir, m.pkg), 0o700); err != nil {
			return nil, err
		}
		return p.built(m, dir), os.WriteFile(filepath.Join(dir, m.file), []byte(m.text), 0o600)
	}
	flag, err := overlay(dir, map[string]string{filepath.Join(p.root, m.file): m.text})
	if err != nil {
		return nil, err
	}
	cmd := exec.Command("go", "test", "-vet=off", "-count=1", "-timeout="+patience.String(), flag, "-run", m.test, m.pkg)
	cmd.Dir, cmd.Env = p.root, os.Environ()
	return cmd, nil
}

// verdict is what a run of a test shows.
type verdict int

const (
	passes verdict = iota
	fails
	hangs    // it is ended after patience, and no test has failed until then
	isBroken // it does not compile, or there is no such test
)

// noticed returns how many runs it takes until the test fails, for no other reason than the mistake.
func (p *player) noticed(m mutant) (runs int, err error) {
	for runs = 1; runs <= tries; runs++ {
		v, out, err := p.withMistake(m)
		switch {
		case err != nil:
			return 0, err
		case v == fails, v == hangs && m.mayHang:
			return runs, nil
		case v == hangs:
			return 0, fmt.Errorf("%s %s does not fail, but hangs, which the table does not permit:\n%s", m.pkg, m.test, out)
		case v == isBroken:
			return 0, fmt.Errorf("no test failed:\n%s", out)
		}
	}
	return 0, fmt.Errorf("%s %s passes with %q", m.pkg, m.test, strings.Join(m.instead, "; "))
}

func (p *player) withMistake(m mutant) (v verdict, out string, err error) {
	dir, err := os.MkdirTemp(p.tmp, "mutant-")
	if err != nil {
		return isBroken, "", err
	}
	defer os.RemoveAll(dir)
	cmd, err := p.mutated(m, dir)
	if err != nil {
		return isBroken, "", err
	}
	v, out = p.run(cmd, m)
	return v, out, nil
}

// run runs the test of m.
func (p *player) run(cmd *exec.Cmd, m mutant) (v verdict, out string) {
	cmd.Env = append(cmd.Env, "RLOCK_REQUIRE_REDIS=1")
	if m.pkg == "./internal/sim" { // few seeds show few mistakes
		cmd.Env = append(cmd.Env, "RLOCK_THOROUGH=1")
	}
	text, err := cmd.CombinedOutput()
	return read(string(text), err != nil), short(string(text))
}

// read returns what the output of a test shows, and whether its process failed.
func read(out string, failed bool) verdict {
	switch has := func(text string) bool { return strings.Contains(out, text) }; {
	case !failed && has("no tests to run"), has("[build failed]"), has("[setup failed]"):
		return isBroken
	case !failed:
		return passes
	case has("--- FAIL"):
		return fails
	case has("panic: test timed out after"):
		return hangs
	case has("panic: "):
		return fails
	}
	return isBroken
}

// short is the beginning and the end of a long text.
func short(text string) string {
	const part = 2000
	if len(text) <= 2*part {
		return text
	}
	return text[:part] + "\n...\n" + text[len(text)-part:]
}
