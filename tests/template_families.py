"""Templates written for template_live.py, each in the manner of a family: what its own does, in other words.

They need no network, unlike the real ones (sdist.py), and some families have no real one there. SMOLLM2 is the
text of the demo's model (Apache-2.0).
"""

SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\n"
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}{{'<|im_start|>'"
    " + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

LIKE_LLAMA3 = (
    "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + "
    "message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}"
    "{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
LIKE_MISTRAL = (
    "{%- if messages[0]['role'] == 'system' %}\n    {%- set system_message = messages[0]['content'] %}\n"
    "    {%- set loop_messages = messages[1:] %}\n{%- else %}\n    {%- set loop_messages = messages %}\n{%- endif %}\n\n"
    "{{- bos_token }}\n{%- for message in loop_messages %}\n"
    "    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}\n"
    "        {{- raise_exception('roles must alternate, not ' + message.role) }}\n    {%- endif %}\n"
    "    {%- if message['role'] == 'user' %}\n"
    "        {%- if loop.last and system_message is defined %}\n"
    "            {{- ' [INST] ' + system_message + '\\n\\n' + message['content'] + ' [/INST]' }}\n"
    "        {%- else %}\n            {{- ' [INST] ' + message['content'] + ' [/INST]' }}\n        {%- endif %}\n"
    "    {%- elif message['role'] == 'assistant' %}\n        {{- ' ' + message['content'] + eos_token }}\n"
    "    {%- else %}\n        {{- raise_exception('unknown role') }}\n    {%- endif %}\n{%- endfor %}\n"
)
LIKE_ZEPHYR = (
    "{% for message in messages %}\n{% if message['role'] == 'user' %}\n{{ '<|user|>\n' + message['content'] + eos_token }}\n"
    "{% elif message['role'] == 'system' %}\n{{ '<|system|>\n' + message['content'] + eos_token }}\n"
    "{% elif message['role'] == 'assistant' %}\n{{ '<|assistant|>\n'  + message['content'] + eos_token }}\n{% endif %}\n"
    "{% if loop.last and add_generation_prompt %}\n{{ '<|assistant|>' }}\n{% endif %}\n{% endfor %}"
)
LIKE_LLAMA2 = """\
{%- if messages[0]['role'] == 'system' %}{% set ns = namespace(system=messages[0]['content'], rest=messages[1:]) %}
{%- else %}{% set ns = namespace(system=false, rest=messages) %}{% endif %}
{%- for message in ns.rest %}
{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must take turns') }}{% endif %}
{%- set content = '<<SYS>>\\n' + ns.system + '\\n<</SYS>>\\n\\n' + message['content'] if loop.index0 == 0 and ns.system != false else message['content'] %}
{%- if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}
{%- elif message['role'] == 'assistant' %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}
{%- endfor %}"""

# tools stand before the last question, calls and results have ids of nine characters
LIKE_MISTRAL_TOOLS = """\
{%- if messages[0].role == "system" %}
    {%- set system, turns = messages[0].content, messages[1:] %}
{%- else %}
    {%- set turns = messages %}
{%- endif %}
{%- if tools is not defined %}{% set tools = none %}{% endif %}
{%- set asked = turns | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace(n=0) %}
{%- for m in turns if m.role not in ("tool", "tool_results") and not m.tool_calls %}
    {%- if (m.role == "user") != (ns.n is divisibleby 2) %}{{ raise_exception("turns") }}{% endif %}
    {%- set ns.n = ns.n + 1 %}
{%- endfor %}
{{- bos_token }}
{%- for m in turns %}
    {%- if m.role == "user" %}
        {%- if tools is not none and m == asked[-1] %}
            {{- "[AVAILABLE_TOOLS] [" }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != "return" %}
                    {{- '"' + key + '": ' + ('"' + val + '"' if val is string else val|tojson) ~ ("" if loop.last else ", ") }}
                {%- endfor %}
                {{- "}}" ~ (", " if not loop.last else "]") }}
            {%- endfor %}
            {{- "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {{- "[INST] " + (system + "\n\n" if loop.last and system is defined else "") + m.content + "[/INST]" }}
    {%- elif m.tool_calls is defined and m.tool_calls is not none %}
        {%- for call in m.tool_calls %}
            {%- if call.id is undefined or call.id|length != 9 %}{{ raise_exception("ids have 9 letters") }}{% endif %}
            {%- set out = call.function|tojson %}
            {{- ("[TOOL_CALLS] [" if loop.first else ", ") ~ out[:-1] ~ ', "id": "' ~ call.id ~ '"}' }}
            {{- "]" + eos_token if loop.last }}
        {%- endfor %}
    {%- elif m["role"] == "assistant" %}
        {{- " " + m["content"]|trim + eos_token }}
    {%- elif m.role in ["tool", "tool_results"] %}
        {%- set content = m.content.content if m.content is mapping and m.content.content is defined else m.content %}
        {{- '[TOOL_RESULTS] {"content": ' + content|string + ', "call_id": "' + m.tool_call_id + '"}[/TOOL_RESULTS]' }}
    {%- else %}
        {{- raise_exception("role " ~ m.role) }}
    {%- endif %}
{%- endfor %}
"""

LIKE_QWEN2 = (
    "{% for message in messages %}{% if loop.first and message.role != 'system' %}{{ '<|im_start|>system\nBe kind<|im_end|>\n' }}"
    "{% endif %}{{ '<|im_start|>' + message.role + '\n' + message.content }}{% if (loop.last and add_generation_prompt) or not "
    "loop.last %}{{ '<|im_end|>' + '\n' }}{% endif %}{% endfor %}{% if add_generation_prompt and messages[-1].role != 'assistant' "
    "%}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

# reasoning of old turns is left out; the last question is found from behind
LIKE_QWEN3 = """\
{%- if tools %}
    {{- '<|im_start|>system\n' ~ (messages[0].content + '\n\n' if messages[0].role == 'system' else '') ~ "<tools>" }}
    {%- for tool in tools %}{{ "\n" }}{{ tool | tojson }}{% endfor %}
    {{- "\n</tools><|im_end|>\n" }}
{%- elif messages[0].role == 'system' %}{{ '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}{% endif %}
{%- set ns = namespace(multi=true, last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi and message.role == "user" and message.content is string and not (message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi = false %}{% set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if message.role == "user" or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {%- set thought = '' %}
        {%- if message.reasoning_content is string %}
            {%- set thought = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set thought = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last and (loop.last or thought) %}
            {{- '<|im_start|>' + message.role + '\n<think>\n' + thought.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}
        {%- else %}{{ '<|im_start|>' + message.role + '\n' + content }}{% endif %}
        {%- for call in message.tool_calls or [] %}
            {%- set call = call.function or call %}
            {{- ('' if loop.first and not content else '\n') ~ '<tool_call>\n{"name": "' ~ call.name ~ '", "arguments": ' }}
            {{- call.arguments if call.arguments is string else call.arguments | tojson }}{{ '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == "tool" %}
        {{- '<|im_start|>user' if loop.first or (messages[loop.index0 - 1].role != "tool") }}
        {{- '\n<tool_response>\n' ~ content ~ '\n</tool_response>' }}
        {{- '<|im_end|>\n' if loop.last or (messages[loop.index0 + 1].role != "tool") }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}{{ '<think>\n\n</think>\n\n' if enable_thinking is defined and enable_thinking is false }}
{%- endif %}"""

LIKE_GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    "{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('turns') }}"
    "{% endif %}{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}"
    "{% endif %}{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}"
)
LIKE_GEMMA3 = """\
{{ bos_token }}
{%- set first = namespace(text='') -%}
{%- if messages[0]['role'] == 'system' -%}
    {%- set system = messages[0]['content'] -%}
    {%- set first.text = (system if system is string else system[0]['text']) + '\n\n' -%}
{%- endif -%}
{%- for message in messages if message['role'] != 'system' -%}
    {{ '<start_of_turn>' + ('model' if message['role'] == 'assistant' else message['role']) + '\n' + (first.text if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {{ '<start_of_image>' if item['type'] == 'image' else item['text'] | trim }}
        {%- endfor -%}
    {%- else -%}
        {{ raise_exception("content") }}
    {%- endif -%}
    {{ '<end_of_turn>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\n' }}{%- endif -%}
"""

LIKE_PHI3 = (
    "{% for message in messages %}{% if message['role'] == 'system' and message['content'] %}{{'<|system|>\n' + message['content'] + "
    "'<|end|>\n'}}{% elif message['role'] == 'user' %}{{'<|user|>\n' + message['content'] + '<|end|>\n'}}{% elif message['role'] == "
    "'assistant' %}{{'<|assistant|>\n' + message['content'] + '<|end|>\n'}}{% endif %}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}"
)
# tools are a member of the system message, or the variable
LIKE_PHI4 = (
    "{% for message in messages %}{% if message['role'] == 'system' and 'tools' in message and message['tools'] is not none %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '<|tool|>' + message['tools'] + '<|/tool|>' + '<|end|>' }}{% else %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endif %}{% endfor %}{% if tools %}<|tool|>{{ tools | "
    "map(attribute='function') | list | tojson(separators=(',', ':')) }}<|/tool|>{% endif %}{% if add_generation_prompt %}"
    "{{ '<|assistant|>' }}{% else %}{{ eos_token }}{% endif %}"
)

LIKE_GRANITE = """\
{%- if tools and not available_tools -%}
    {%- set available_tools = tools -%}
{%- endif -%}
{%- if messages[0]['role'] == 'system' %}
     {%- set system, turns = messages[0]['content'], messages[1:] %}
{%- else %}
     {%- set system = "Today is " + strftime_now('%B %d, %Y') + "." %}
     {%- set system = system + (" Tools." if available_tools else "") ~ (" Documents." if documents) ~ (" Think." if thinking and not documents) %}
     {%- if 'citations' in controls and documents %}{% set system = system ~ ' Cite.' %}{% endif %}
     {%- set turns = messages %}
{%- endif %}
{{- '<|start_of_role|>system<|end_of_role|>' + system + '<|end_of_text|>\n' }}
{%- if available_tools %}
    {{- '<|start_of_role|>available_tools<|end_of_role|>' ~ available_tools | tojson(indent=4) ~ '<|end_of_text|>\n' }}
{%- endif %}
{%- for document in documents or [] %}
    {{- '<|start_of_role|>document {"document_id": "' + document['doc_id'] | string + '"}<|end_of_role|>\n' ~ document['text'] ~ '\n' }}
{%- endfor %}
{%- for message in turns %}
    {{- '<|start_of_role|>' ~ message.role ~ '<|end_of_role|>' ~ message.content ~ '<|end_of_text|>\n' }}
    {%- if loop.last and add_generation_prompt %}
        {{- '<|start_of_role|>assistant' ~ (' ' ~ controls | tojson() if controls else '') ~ '<|end_of_role|>' }}
    {%- endif %}
{%- endfor %}"""

LIKE_OLMO2 = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] != 'assistant' %}{{ '<|' ~ message['role'] ~ '|>\n' + "
    "message['content'] + '\n' }}{% elif not loop.last %}{{ '<|assistant|>\n'  + message['content'] + eos_token + '\n' }}{% else %}"
    "{{ '<|assistant|>\n'  + message['content'] + eos_token }}{% endif %}{% if loop.last and add_generation_prompt %}"
    "{{ '<|assistant|>\n' }}{% endif %}{% endfor %}"
)
LIKE_STABLELM = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>\n' + message['content'] | trim + eos_token + '\n' }}"
    "{% if loop.last and add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}{% endfor %}"
)

# types of a schema by a macro that calls itself, channels, built-in tools
LIKE_GPT_OSS = """\
{%- macro kind(spec, nullable=false) -%}
    {%- if spec.type == "array" -%}
        {{- kind(spec['items']) ~ "[]" if spec['items'] else "any[]" }}
    {%- elif spec.type is iterable and spec.type is not string -%}{{ spec.type | join(" | ") }}
    {%- elif spec.oneOf -%}
        {%- for one in spec.oneOf -%}{{ kind(one) }}{{ "// default: " + one.default|tojson if one.default is defined }}{{ " | " if not loop.last }}{% endfor %}
    {%- elif spec.enum -%}{{ '"' + spec.enum|join('" | "') + '"' }}
    {%- elif spec.type in ("integer", "number") -%}number
    {%- elif spec.type == "object" and spec.properties -%}
        {{- "{\n" }}
        {%- for name, inner in spec.properties.items() -%}
            {{- name ~ ("?" if name not in (spec.required or []) else "") ~ ": " }}{{ kind(inner) }}{{ ", " if not loop.last }}
        {%- endfor -%}
        {{- "}" }}
    {%- else -%}{{ spec.type|default("any") }}{%- endif -%}
    {%- if nullable or spec.nullable %}{{ " | null" }}{% endif -%}
{%- endmacro -%}
{%- macro namespace_of(name, tools) -%}
    {{- "## " ~ name ~ "\n\nnamespace " ~ name ~ " {\n" }}
    {%- for tool in tools|map(attribute="function") %}
        {{- "// " + tool.description + "\ntype " ~ tool.name ~ " = " }}
        {%- if tool.parameters and tool.parameters.properties -%}
            {{- "(_: {" }}
            {%- for name, spec in tool.parameters.properties.items() %}
                {{- "\n" ~ ("// " ~ spec.description ~ "\n" if spec.description else "") ~ name ~ ("?" if name not in (tool.parameters.required or []) else "") ~ ": " ~ kind(spec) }}
                {{- ", // default: " ~ spec.default|tojson if spec.default is defined else "," }}
            {%- endfor %}
            {{- "\n}) => any;\n" }}
        {%- else %}{{ "() => any;\n" }}{% endif %}
    {%- endfor %}
    {{- "} // namespace " + name }}
{%- endmacro -%}
{{- "<|start|>system<|message|>" ~ (model_identity if model_identity is defined else "You are a model.") ~ "\n" }}
{{- "Current date: " + strftime_now("%Y-%m-%d") + "\n\nReasoning: " + reasoning_effort|default("medium") }}
{%- for tool in builtin_tools|default([]) if tool in ("browser", "python") %}{{ "\n# " + tool }}{% endfor %}
{{- "<|end|>" }}
{%- set ns = namespace(system="", last_call=none) %}
{%- if messages[0].role in ["developer", "system"] %}{% set ns.system = messages[0].content %}{% endif %}
{%- if ns.system or tools %}
    {{- "<|start|>developer<|message|>" ~ ("# Instructions\n\n" ~ ns.system ~ "\n\n" if ns.system else "") }}
    {{- namespace_of("functions", tools) if tools }}{{ "<|end|>" }}
{%- endif %}
{%- for message in messages if message.role not in ["developer", "system"] %}
    {%- if message.role == 'assistant' %}
        {%- if "tool_calls" in message %}
            {%- if message.content and message.thinking %}{{ raise_exception("content or thinking, not both") }}{% endif %}
            {%- set call = message.tool_calls[0].function or message.tool_calls[0] %}
            {{- "<|start|>assistant<|channel|>analysis<|message|>" ~ (message.content or message.thinking) ~ "<|end|>" if message.content or message.thinking }}
            {{- "<|start|>assistant to=functions." ~ call.name ~ "<|channel|>commentary json<|message|>" ~ call.arguments|tojson ~ "<|call|>" }}
            {%- set ns.last_call = call.name %}
        {%- elif loop.last and not add_generation_prompt %}
            {{- "<|start|>assistant<|channel|>analysis<|message|>" ~ message.thinking ~ "<|end|>" if "thinking" in message }}
            {{- "<|start|>assistant<|channel|>final<|message|>" ~ message.content ~ "<|return|>" }}
        {%- else %}
            {{- "<|start|>assistant<|channel|>final<|message|>" ~ message.content ~ "<|end|>" }}
        {%- endif %}
    {%- elif message.role == 'tool' %}
        {%- if ns.last_call is none %}{{ raise_exception("a result without a call") }}{% endif %}
        {{- "<|start|>functions." ~ ns.last_call ~ " to=assistant<|channel|>commentary<|message|>" ~ message.content|tojson ~ "<|end|>" }}
    {%- elif message.role == 'user' %}
        {{- "<|start|>user<|message|>" ~ message.content ~ "<|end|>" }}
    {%- endif %}
{%- endfor %}
{{- "<|start|>assistant" if add_generation_prompt }}
"""

# masks of training pass their text through; a setting in the system message wins
LIKE_SMOLLM3 = """\
{%- set thinking = enable_thinking if enable_thinking is defined else true -%}
{%- set ns = namespace(mode="/think" if thinking else "/no_think", custom="") -%}
{%- if messages[0].role == "system" -%}
  {%- set system = messages[0].content -%}
  {%- if "/no_think" in system -%}{%- set ns.mode = "/no_think" -%}{%- endif -%}
  {%- set ns.custom = system.replace("/no_think", "").replace("/think", "").rstrip() -%}
{%- endif -%}
{{- "<|im_start|>system\n## Metadata\n\nToday Date: " ~ strftime_now("%d %B %Y") ~ "\nReasoning Mode: " ~ ns.mode ~ "\n\n" -}}
{{- ns.custom ~ "\n\n" if ns.custom -}}
{%- if xml_tools or python_tools or tools -%}
  {%- set ns.xml = "<tools>\n" -%}
  {%- for tool in xml_tools or tools or [] -%}{%- set ns.xml = ns.xml ~ (tool | string) ~ "\n" -%}{%- endfor -%}
  {{- ns.xml + "</tools>\n\n" -}}
{%- endif -%}
{{- "<|im_end|>\n" -}}
{%- for message in messages -%}
  {%- set content = message.content if message.content is string else "" -%}
  {%- if message.role == "user" -%}{{ "<|im_start|>" + message.role + "\n" + content + "<|im_end|>\n" }}
  {%- elif message.role == "assistant" -%}
    {%- generation -%}
    {{- "<|im_start|>assistant\n" ~ ("<think>\n\n</think>\n" if ns.mode == "/no_think") ~ content.lstrip("\n") ~ "<|im_end|>\n" -}}
    {%- endgeneration -%}
  {%- elif message.role == "tool" -%}{{ "<|im_start|>user\n" + content + "<|im_end|>\n" }}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ "<|im_start|>assistant\n" ~ ("<think>\n\n</think>\n" if ns.mode == "/no_think") }}{%- endif -%}
"""

FAMILIES = {"SmolLM2": SMOLLM2} | {
    name[5:].lower().replace("_", " "): text for name, text in list(globals().items()) if name.startswith("LIKE_")
}
