"""Faults of what a row may have, of how failed rows are told, and of rows on stdout (see mutants.py)."""
from mutant_fault import fault

ERRORS, IGNORE, FIELDS = "engine/job/errors.c", "engine/job/ignore.c", "engine/job/request_fields.c"
SPOOL, SCAN, MANIFEST = "engine/cli/spool.c", "engine/job/job_scan.c", "engine/job/job_manifest.c"
STDOUT, DRY = "command_test.py --only stdout_rows", "merge_test.py --only dry_run"

fault("a digit of a word is a value", ERRORS, "    if (p > text && (isalnum", "    if (0 && (isalnum", "errors_test")
fault("messages that begin alike are one kind", ERRORS, "    if (*p || *m)\n        return 0;\n", "", "errors_test")
fault("a folded message outgrows its room", ERRORS, "    if (*n + n_p >= cap)\n", "    if (*n + n_p >= 2 * cap)\n", "errors_test")
fault("fields are no part of a kind", ERRORS, " && strcmp(known->field, error->field) == 0 &&", " &&", "errors_test")
fault("kinds have no bound", ERRORS, "    if (e->n_kinds == JOB_ERROR_KINDS)\n", "    if (e->n_kinds == 2 * JOB_ERROR_KINDS)\n", "errors_test")
fault("the first lines are those that came first", ERRORS, "while (at > 0 && k->lines[at - 1] > line)", "while (0)", "errors_test")
fault("rows of a part have no kinds", ERRORS, "        add_rows(e, &error, json_integer_value", "        add_rows(e, &error, 0 * json_integer_value", "errors_test")
fault("a slip of --ignore-fields is a field", IGNORE, "if (near && !honoured)", "if (0)", "fields_test")
fault("a field that sluice honours can be ignored", IGNORE, "if (known && honoured)", "if (0)", "fields_test")
fault("the order of --ignore-fields is part of a job", IGNORE, "while (at < list->n && strcmp(list->names[at], name) < 0)",
      "while (at < list->n && strcmp(list->names[at], name) != 0)", "fields_test")
fault("null asks for something", FIELDS, "if (kind == JSON_NIL || (known", "if ((known", "fields_test")
fault("a slip in the input is a field to ignore", FIELDS, "        f->error->field[0] = 0;\n", "        ;\n", "fields_test")
fault("a field that no flag ignores is one to ignore", FIELDS, "if (near || honoured)", "if (near)", "fields_test")
fault("every value of a field that sluice lacks is taken", FIELDS, "(known && is_word_of(known->plain, value))", "known", "fields_test")
fault("tool_choice none beside tools is taken", "engine/job/request.c", "if (f->tools.set && f->no_tools)", "if (0)", "fields_test")
fault("images are left out in silence", "engine/job/request_chat.c", 'if (type && strcmp(type, "text") != 0) {\n        *text = NULL;\n',
      'if (type && strcmp(type, "text") != 0) {\n        *text = NULL;\n        return OK;\n', "fields_test")
fault("rows that lost a field are not counted", SCAN, "r.ignored >> i & 1", "0 * (r.ignored >> i & 1)", "chat_rows_test.py --only refused")
fault("a later run ignores less", MANIFEST, "if (gone.n > 0)", "if (0)", "rerun_test")
fault("more is ignored without --retry-errors", MANIFEST, "    if (job->config.retry_errors)\n        return OK;\n    return fail(ERR_JOB,\n                \"%.400s: the job was begun %s",
      "    return OK;\n    return fail(ERR_JOB,\n                \"%.400s: the job was begun %s", "rerun_test")
fault("an older job that ignored every field goes on", MANIFEST, '"error") == 0 ? "" : EVERY_FIELD', '"error") == 0 ? "" : ""', DRY)
fault("a JSON list is rows", SCAN, "    TRY(check_list(job));\n", "", "job_input_test")
fault("text for a model without a tokenizer is rows", SCAN, "int is_text = err == ERR_ROW &&", "int is_text = 0 &&", "job_input_test")
fault("a CSV file is rows", SCAN, "int is_no_json = err == ERR_ROW &&", "int is_no_json = 0 &&", "job_input_test")
fault("one row that is no JSON is a wrong file", SCAN, "            return err == ERR_ROW ? OK : err;\n", "            continue;\n", "job_input_test")
fault("status: no one says why rows failed", "engine/job/job_status.c", "        err = read_errors(s, &told, partial);\n", "        ;\n",
      "status_test.py --only running_and_stopped")
fault("rows that stdout did not take are lost", SPOOL, "    if (copied == OK && !c->work_dir)\n        remove", "    if (!c->work_dir)\n        remove", STDOUT)
fault("a folder of --work-dir goes with the job", SPOOL, "    if (copied == OK && !c->work_dir)\n        remove", "    if (copied == OK)\n        remove", STDOUT)
fault("a full stdout is no error", SPOOL, "    err = copied == OK ? err : copied;\n", "", STDOUT)
fault("a closed stdout shows at the end", SPOOL, "    if ((fcntl(STDOUT_FILENO, F_GETFL) & O_ACCMODE) == O_RDONLY)", "    if (0)", STDOUT)
fault("a folder that is kept has no name", SPOOL, "    if (c->work_dir || rmdir(work_dir) == 0)\n", "    if (rmdir(work_dir) == 0 || 1)\n", STDOUT)
fault("a dry run prints the rows of an earlier run", "engine/cli/commands.c", "asked->dry_run ? err : spool_out_end", "0 ? err : spool_out_end", STDOUT)
fault("Ctrl-C does not stop a write to stdout", SPOOL, "if (*c->interrupted != before || (put", "if ((put", STDOUT)
