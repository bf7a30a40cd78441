package main

import (
	"encoding/json"
	"errors"
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
	healthy   map[string]func() error // by package and test: the test without a mistake
}

// tries is how often a test may run until it shows what it has to: some draw random operations, and a busy machine may
// take too long for one that passes.
const tries = 3

const scriptsEnv = "RLOCK_MUTANT_SCRIPTS"

// play runs the test of each mutant, and returns how many were not noticed. Before it trusts a
// test that fails it sees it pass without the mistake, once for each test.
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
			err := p.healthy[m.pkg+m.test]()
			if err == nil {
				err = p.noticed(m)
			}
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				wrong++
				fmt.Printf("NOT NOTICED  line %d, %s: %v\n", m.line, m.file, err)
				return
			}
			fmt.Printf("noticed in %4.1fs  line %d, %s: %s\n", time.Since(began).Seconds(), m.line, m.file, m.test)
		})
	}
	work.Wait()
	return wrong, nil
}

func newPlayer(root, tmp string, all []mutant) (*player, error) {
	p := &player{root: root, tmp: tmp, builds: map[string]func() error{}, healthy: map[string]func() error{}}
	if err := p.readScripts(); err != nil {
		return nil, err
	}
	for _, m := range all {
		if p.builds[m.pkg] == nil {
			p.builds[m.pkg] = sync.OnceValue(func() error { return p.build(m.pkg) })
		}
		build := p.builds[m.pkg]
		if p.healthy[m.pkg+m.test] == nil {
			p.healthy[m.pkg+m.test] = sync.OnceValue(func() error {
				if err := build(); err != nil {
					return err
				}
				var out string
				for range tries {
					text, failed := p.run(p.built(m, root), m)
					if !failed {
						return nil
					}
					out = text
				}
				return fmt.Errorf("%s %s fails without a mistake:\n%s", m.pkg, m.test, out)
			})
		}
	}
	return p, nil
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
	cmd := exec.Command(binary, "-test.timeout=90s", "-test.run", m.test)
	cmd.Dir = filepath.Join(p.root, m.pkg)
	cmd.Env = append(os.Environ(), scriptsEnv+"="+scripts)
	return cmd
}

// mutated is the test of m with its mistake, for which dir is free.
func (p *player) mutated(m mutant, dir string) (*exec.Cmd, error) {
	if strings.HasSuffix(m.file, ".lua") {
		if err := os.CopyFS(filepath.Join(dir, "scripts"), os.DirFS(filepath.Join(p.root, "scripts"))); err != nil {
			return nil, err
		}
		return p.built(m, dir), os.WriteFile(filepath.Join(dir, m.file), []byte(m.text), 0o600)
	}
	flag, err := overlay(dir, map[string]string{filepath.Join(p.root, m.file): m.text})
	if err != nil {
		return nil, err
	}
	cmd := exec.Command("go", "test", "-vet=off", "-count=1", "-timeout=90s", flag, "-run", m.test, m.pkg)
	cmd.Dir, cmd.Env = p.root, os.Environ()
	return cmd, nil
}

var errPasses = errors.New("passes with")

// noticed returns nil if the test fails, for no other reason than the mistake.
func (p *player) noticed(m mutant) (err error) {
	for range tries {
		if err = p.fails(m); !errors.Is(err, errPasses) {
			return err
		}
	}
	return err
}

func (p *player) fails(m mutant) error {
	dir, err := os.MkdirTemp(p.tmp, "mutant-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	cmd, err := p.mutated(m, dir)
	if err != nil {
		return err
	}
	out, failed := p.run(cmd, m)
	switch {
	case !failed:
		return fmt.Errorf("%s %s %w %q", m.pkg, m.test, errPasses, strings.Join(m.instead, "; "))
	case strings.Contains(out, "[build failed]") || strings.Contains(out, "[setup failed]"):
		return fmt.Errorf("it does not compile:\n%s", out)
	case !strings.Contains(out, "--- FAIL") && !strings.Contains(out, "panic: "):
		return fmt.Errorf("no test failed:\n%s", out)
	}
	return nil
}

// run runs the test of m. A run of no test has failed.
func (p *player) run(cmd *exec.Cmd, m mutant) (out string, failed bool) {
	cmd.Env = append(cmd.Env, "RLOCK_REQUIRE_REDIS=1")
	if m.pkg == "./internal/sim" { // few seeds show few mistakes
		cmd.Env = append(cmd.Env, "RLOCK_THOROUGH=1")
	}
	text, err := cmd.CombinedOutput()
	out = string(text)
	if err == nil && strings.Contains(out, "no tests to run") {
		return "there is no such test", true
	}
	if last := 4000; len(out) > last {
		out = out[:last]
	}
	return out, err != nil
}
