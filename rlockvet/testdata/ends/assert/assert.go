// Package assert has some names of testify.
package assert

type TestingT interface {
	Errorf(format string, args ...any)
}

func Fail(t TestingT, message string, args ...any) bool { t.Errorf(message); return false }

func FailNow(t TestingT, message string, args ...any) bool {
	t.(interface{ FailNow() }).FailNow()
	return false
}

func Error(t TestingT, err error, args ...any) bool { return err != nil }
