"""Describes what user code raised, as Python itself would print it."""

try:
    from traceback import FrameSummary, TracebackException
except Exception:
    FrameSummary = TracebackException = None  # user code broke it before it was ever needed

OURS = "<sandbox "
TEXT_LIMIT = 1 << 20
MAX_FRAMES = 3000
LEFT_OUT = OURS[:-1] + "-left-out %d>"
class_name = type.__dict__["__name__"].__get__
arguments_of = BaseException.args.__get__
traceback_of, set_traceback = BaseException.__traceback__.__get__, BaseException.__traceback__.__set__
cause_of, context_of = BaseException.__cause__.__get__, BaseException.__context__.__get__


def describe(error, filename):
    """Returns name, text and traceback of an exception. May run user code, and may raise."""
    # First, because an interrupt ends it here, while `traceback` would continue with the next text.
    value = value_of(error)
    load("hooks")["fill_linecache"]()
    if isinstance(error, SyntaxError):
        add_source(error)
    trace = user_frames(traceback_of(error), filename)
    formers = []
    try:
        left_out = shorten(error, trace, formers)
        described = TracebackException(type(error), error, traceback_of(error) if left_out else trace)
        tell_left_out(described, error, formers)
    finally:
        for former, whole, _ in formers:
            set_traceback(former, whole)
    hide_own_frames(described, set())
    if trace is None:
        lines = described.format_exception_only()
    else:
        lines = map(frame_line, described.format())
    return name_of(error), value, cut("".join(lines))


def shorten(error, trace, formers):
    """Takes the middle out of tracebacks that would take too long, also of causes and contexts. Returns true for the first one.

    They are put back: `formers` has each exception with its whole traceback and the number of frames that are left out.
    """
    seen, left, is_first = {id(error)}, [(error, trace)], True
    first_is_long = False
    while left:
        one, trace = left.pop()
        short, count = without_middle(trace)
        if count:
            formers.append((one, traceback_of(one), count))
            set_traceback(one, short)
            first_is_long = first_is_long or is_first
        is_first = False
        others = [cause_of(one), context_of(one)]
        members = getattr(one, "exceptions", None)
        if type(members) is tuple:
            others.extend(members)
        for other in others:
            if isinstance(other, BaseException) and id(other) not in seen:
                seen.add(id(other))
                left.append((other, traceback_of(other)))
    return first_is_long


def without_middle(trace):
    frames, at = [], trace
    while at is not None:
        frames.append(at)
        at = at.tb_next
    count = len(frames) - MAX_FRAMES
    if count <= 0:
        return trace, 0
    half = MAX_FRAMES // 2
    short = frames[-half]
    for at in reversed(frames[:half]):
        short = type(at)(short, at.tb_frame, at.tb_lasti, at.tb_lineno)
    return short, count


def tell_left_out(described, error, formers):
    """Adds to a traceback where frames are left out."""
    counts = {id(one): count for one, _, count in formers}
    seen, left = set(), [(described, error)]
    while left and counts:
        described, error = left.pop()
        if described is None or id(described) in seen:
            continue
        seen.add(id(described))
        count = counts.get(id(error))
        if count:
            described.stack.insert(MAX_FRAMES // 2, FrameSummary(LEFT_OUT % count, 0, "", line=""))
        left += [(described.__cause__, cause_of(error)), (described.__context__, context_of(error))]
        left += zip(getattr(described, "exceptions", None) or (), getattr(error, "exceptions", None) or ())


def frame_line(text):
    """Returns the text of a frame, or of the frames that are left out."""
    mark = '  File "' + LEFT_OUT.partition("%d")[0]
    if not text.startswith(mark):
        return text
    return "  [%s more frames]\n" % text[len(mark) :].partition(">")[0]


def describe_plainly(error):
    """Describes an exception when the interpreter is too broken for more; runs no user code."""
    name = name_of(error)
    value = ""
    lines = ["Traceback (most recent call last):\n"]
    try:
        arguments = arguments_of(error)
        if len(arguments) == 1 and type(arguments[0]) is str:
            value = cut(arguments[0])
        lines += plain_frames(traceback_of(error))
    except Exception:
        pass  # an audit hook can forbid even looking
    lines.append("%s: %s\n" % (name, value) if value else "%s\n" % name)
    return name, value, cut("".join(lines))


def plain_frames(trace):
    sources = load("hooks")["SOURCES"]
    lines = []
    while trace is not None:
        code = trace.tb_frame.f_code
        if not code.co_filename.startswith(OURS):
            place = (code.co_filename, trace.tb_lineno, code.co_name)
            lines.append('  File "%s", line %d, in %s\n' % place)
            source = sources.get(code.co_filename, "").split("\n")
            if 0 < trace.tb_lineno <= len(source):
                lines.append("    %s\n" % source[trace.tb_lineno - 1].strip())
        trace = trace.tb_next
    return lines


def add_source(error):
    """Adds the line to an error that was found after parsing."""
    source = load("hooks")["SOURCES"].get(error.filename)
    if error.text is None and source is not None and error.lineno:
        lines = source.split("\n")
        if 0 < error.lineno <= len(lines):
            error.text = lines[error.lineno - 1] + "\n"


def user_frames(trace, filename):
    """Returns the traceback from the first frame of user code on."""
    first = trace
    while first is not None and first.tb_frame.f_code.co_filename != filename:
        first = first.tb_next
    if first is not None:
        return first
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(OURS):
        trace = trace.tb_next
    return trace


def hide_own_frames(described, seen):
    """Takes frames of the driver out of the middle, in causes and contexts too."""
    if described is None or id(described) in seen:
        return
    seen.add(id(described))
    described.stack[:] = [
        frame for frame in described.stack if not frame.filename.startswith(OURS)
    ]
    hide_own_frames(described.__cause__, seen)
    hide_own_frames(described.__context__, seen)
    for member in getattr(described, "exceptions", None) or ():
        hide_own_frames(member, seen)


def name_of(error):
    name = class_name(type(error))
    return name if name.isprintable() else repr(name)[1:-1]


def value_of(error):
    try:
        return cut(str(error))
    except (Exception, SystemExit, GeneratorExit):
        return "<exception str() failed>"


def cut(value):
    if len(value) <= TEXT_LIMIT:
        return value
    half = TEXT_LIMIT // 2
    return "%s\n... [cut: %d characters in all]\n%s" % (value[:half], len(value), value[-half:])
