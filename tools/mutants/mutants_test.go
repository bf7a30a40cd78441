package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// tree writes files, and returns their folder.
func tree(t *testing.T, files map[string]string) (root string) {
	t.Helper()
	root = t.TempDir()
	for name, text := range files {
		name = filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

var program = map[string]string{
	"docs/guarantees.md": "| Sums are right | `TestSum` |\n",
	"go.mod":             "module sum\n\ngo 1.26\n",
	"sum.go":             "package sum\n\nfunc Sum(a, b int) int {\n\tif a == 0 {\n\t\treturn b\n\t}\n\treturn a + b\n}\n",
	"sum_test.go": "package sum\n\nimport (\n\t\"os\"\n\t\"strings\"\n\t\"testing\"\n)\n\nfunc TestSum(t *testing.T) {\n\tif Sum(2, 1) != 3 {\n\t\tt.Error(Sum(2, 1))\n\t}\n}\n\n" +
		"func TestWrong(t *testing.T) { t.Error(Sum(0, 0)) }\n\n" +
		"func TestLoud(t *testing.T) {\n\tprintln(strings.Repeat(\"loud \", 2000))\n\tTestSum(t)\n\tdefer println(strings.Repeat(\"loud \", 2000))\n}\n\n" +
		// It fails from its third run on.
		"func TestTired(t *testing.T) {\n\truns, _ := os.ReadFile(\"runs\")\n\tif err := os.WriteFile(\"runs\", append(runs, 'x'), 0o600); err != nil || len(runs) >= 2 {\n\t\tt.Error(runs, err)\n\t}\n}\n",
}

func TestPlay(t *testing.T) {
	defer func(d time.Duration) { patience = d }(patience)
	patience = 10 * time.Second
	root := tree(t, program)
	for name, c := range map[string]struct {
		change, test string
		noticed      bool
	}{
		"noticed":                  {"-return a + b\n+return a - b", "^TestSum$", true},
		"not noticed":              {"-if a == 0 {\n+if false {", "^TestSum$", false},
		"it does not compile":      {"-return a + b\n+return c", "^TestSum$", false},
		"no such test":             {"-return a + b\n+return a - b", "^TestSums$", false},
		"the test fails all along": {"-return a + b\n+return a - b", "^TestWrong$", false},
		"the test fails at times":  {"-if a == 0 {\n+if false {", "^TestTired$", false},
		"a loud test":              {"-return a + b\n+return a - b", "^TestLoud$", true},
		"it panics":                {"-return a + b\n+panic(a)", "^TestSum$", true},
		"it hangs":                 {"-return a + b\n+select {}", "^TestSum$", false},
		"it hangs, and may":        {"-return a + b\n+for {}", "^TestSum$ hangs", true},
	} {
		t.Run(name, func(t *testing.T) {
			all, err := table(root, "promise: Sums are right\n\nsum.go\n"+c.change+"\n. "+c.test+"\n")
			if err != nil || len(all) != 1 {
				t.Fatal(all, err)
			}
			if wrong, err := play(root, all, 1); err != nil || (wrong == 0) != c.noticed {
				t.Errorf("%d not noticed (%v)", wrong, err)
			}
		})
	}
}

func TestPlayScripts(t *testing.T) {
	root := tree(t, map[string]string{
		"docs/guarantees.md":  "| One is one | `TestOne` |\n",
		"go.mod":              "module rlock\n\ngo 1.26\n",
		"scripts/sum/one.lua": "-- one\nreturn 1\n",
		"options.go": "package rlock\n\nimport (\n\t\"embed\"\n\t\"io/fs\"\n)\n\n//go:embed scripts/*/*.lua\nvar scriptFiles embed.FS\n\n" +
			"func One() string {\n\ttext, _ := fs.ReadFile(scriptFiles, \"scripts/sum/one.lua\")\n\treturn string(text)\n}\n",
		"one_test.go": "package rlock\n\nimport (\n\t\"strings\"\n\t\"testing\"\n)\n\n" +
			"func TestOne(t *testing.T) {\n\tif !strings.Contains(One(), \"return 1\\n\") {\n\t\tt.Error(One())\n\t}\n}\n",
	})
	for change, noticed := range map[string]bool{"-return 1\n+return 2": true, "--- one\n+-- two": false} {
		all, err := table(root, "promise: One is one\n\nscripts/sum/one.lua\n"+change+"\n. ^TestOne$\n")
		if err != nil {
			t.Fatal(err)
		}
		if wrong, err := play(root, all, 1); err != nil || (wrong == 0) != noticed {
			t.Errorf("%q: %d not noticed (%v)", change, wrong, err)
		}
	}
}

func TestTableIsLarge(t *testing.T) {
	all, err := table("../..", mutants)
	if err != nil {
		t.Fatal(err)
	}
	scripts, promises := 0, map[string]bool{}
	for _, m := range all {
		promises[m.promise] = true
		if strings.HasSuffix(m.file, ".lua") {
			scripts++
		}
	}
	if n := len(all); n < 200 || 3*scripts < n || 3*(n-scripts) < n || len(promises) < 40 {
		t.Errorf("%s: want 200 of 40 promises, and a third in each language", census(all))
	}
}

func TestTableFitsTheTree(t *testing.T) {
	root := tree(t, program)
	for name, c := range map[string]struct{ text, want string }{
		"a line that is gone": {"promise: Sums are right\n\nsum.go\n-return a * b\n+return 0\n. ^TestSum$\n", "does not have"},
		"a line twice":        {"promise: Sums are right\n\nsum.go\n-}\n+\n. ^TestSum$\n", "twice"},
		"no promise":          {"promise: Sums are quick\n\nsum.go\n-return b\n+return 0\n. ^TestSum$\n", "does not promise"},
		"no test":             {"promise: Sums are right\n\nsum.go\n-return b\n+return 0\n", "is not a package and a test"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := table(root, c.text); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Error(err)
			}
		})
	}
}

func TestTurn(t *testing.T) {
	all := make([]mutant, 100)
	for i := range all {
		all[i].line = i
	}
	had := map[int]bool{}
	for commit := range uint64(60) {
		for _, m := range turn(all, 15, commit) {
			had[m.line] = true
		}
	}
	if len(had) != len(all) {
		t.Errorf("%d of %d have their turn", len(had), len(all))
	}
}

func TestWithoutGitTheFilesDecide(t *testing.T) {
	root := tree(t, program)
	t.Setenv("GIT_CEILING_DIRECTORIES", filepath.Dir(root))
	of := func(instead string) uint64 {
		all, err := table(root, "promise: Sums are right\n\nsum.go\n-return a + b\n+"+instead+"\n. ^TestSum$\n")
		if err != nil {
			t.Fatal(err)
		}
		return commit(root, all)
	}
	minus := of("return a - b")
	if again, times := of("return a - b"), of("return a * b"); minus != again || minus == times {
		t.Error("the number does not follow from the files")
	}
}
