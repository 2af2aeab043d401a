"""Chat templates of model families, in our own words, for the tokenizer of hf_models.py."""

EACH = "{% for m in messages %}"
CHATML = EACH + "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
CHATML += "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
SMOLLM2 = "{% if messages[0].role != 'system' %}<|im_start|>system\nBe kind.<|im_end|>\n{% endif %}" + CHATML
LLAMA3 = "{{ bos_token }}" + EACH + "<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
LLAMA3 += "{{ m.content | trim }}<|eot_id|>{% endfor %}"
LLAMA3 += "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
MISTRAL = "{{ bos_token }}" + EACH + "{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
MISTRAL += "{% elif m.role == 'assistant' %} {{ m.content }}{{ eos_token }}"
MISTRAL += "{% else %}{{ raise_exception('only user and assistant') }}{% endif %}{% endfor %}"
GEMMA = "{{ bos_token }}" + EACH + "{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
GEMMA += "<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content | trim }}<end_of_turn>\n"
GEMMA += "{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
PHI = EACH + "<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}"
PHI += "{% if add_generation_prompt %}<|assistant|>\n{% else %}{{ eos_token }}{% endif %}"
ZEPHYR = EACH + "<|{{ m.role }}|>\n{{ m.content }}{{ eos_token }}\n{% endfor %}"
ZEPHYR += "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
# Qwen3 keeps the thinking of the last answer only.
QWEN3 = EACH + "{% set c = m.content.split('</think>')[-1].lstrip('\n') if not loop.last else m.content %}"
QWEN3 += "<|im_start|>{{ m.role }}\n{{ c }}<|im_end|>\n{% endfor %}"
QWEN3 += "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
# Templates that cannot be extended: a base model, one whose turns have no end, one that changes every earlier answer.
OPEN = EACH + "{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
GONE = CHATML.replace("{{ m.content }}", "{{ m.content if loop.last or m.role == 'user' else 'gone' }}")

EXTENDED = {"chatml": CHATML, "smollm2": SMOLLM2, "llama3": LLAMA3, "mistral": MISTRAL, "gemma": GEMMA}
EXTENDED |= {"phi": PHI, "zephyr": ZEPHYR, "qwen3": QWEN3}
STUCK = {"none": None, "open": OPEN, "gone": GONE}
